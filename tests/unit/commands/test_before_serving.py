"""What `serve` and `stop` make sure of before they change anything."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from clusterctl.engine.carry_out import carry_out
from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import NodeState
from clusterctl.operations.serving import Changes, Decision, new_key
from clusterctl.serving.request import ServiceRequest
from clusterctl.survey.survey import require_bootstrapped
from tests.fakes.transport import FakeTransport, starts

INVENTORY = Inventory(
    cluster="demo",
    image="i",
    hosts=(Host(name="gpu1", address="gpu1", role="head"),),
    source=Path("/srv/my cluster.yaml"),
)
ANY: Any = None
STATE = NodeState("gpu1", "head", 1000.0, "1", "up", 0.0, 0)


def decision(*lines: str) -> Decision:
    return Decision(ANY, ANY, ANY, Changes(lines, restarts=False))


def test_a_supervisor_that_wrote_just_now_is_believed() -> None:
    assert require_bootstrapped(INVENTORY, STATE, clock=1003.0) is STATE


def test_a_supervisor_that_has_ended_is_told_at_once() -> None:
    with pytest.raises(RequirementsNotMet, match="last wrote 40 s ago") as caught:
        require_bootstrapped(INVENTORY, STATE, clock=1040.0)
    assert caught.value.hint == "clusterctl bootstrap '/srv/my cluster.yaml'"
    assert caught.value.host == "gpu1"


@pytest.mark.parametrize(
    ("under_lock", "asked"),
    [(("start --port 8000",), 1), (("start --port 8001",), 2), ((), 1)],
)
def test_what_was_decided_before_the_lock_is_decided_anew_under_it(
    under_lock: tuple[str, ...], asked: int
) -> None:
    shown: list[Decision] = []
    decisions = [decision("start --port 8000"), decision(*under_lock), decision(*under_lock)]
    act: Any = lambda found, _: found  # noqa: E731

    done = carry_out(
        lambda: decisions.pop(0), shown.append, lambda: nullcontext(ANY), act,
        lambda found: found.changes.shown,
    )  # fmt: skip

    assert done.changes.lines == under_lock
    assert len(shown) == asked


@pytest.mark.parametrize(
    ("asked", "declared", "key"),
    [(None, ("tiny",), None), ("the-clusters", ("tiny",), None), ("ones-own", (), "ones-own")],
)
def test_the_key_of_a_config_file_becomes_the_clusters_while_nothing_is_served(
    asked: str | None, declared: tuple[str, ...], key: str | None
) -> None:
    head = FakeTransport().on(starts("cat"), stdout="the-clusters\n")
    assert new_key(INVENTORY, head, ServiceRequest("m", api_key=asked), declared) == key


def test_a_key_that_clients_of_other_services_would_have_to_learn_is_refused() -> None:
    head = FakeTransport().on(starts("cat"), stdout="the-clusters\n")
    with pytest.raises(UsageError, match="which a, b already use") as caught:
        new_key(INVENTORY, head, ServiceRequest("m", api_key="ones-own"), ("a", "b"))
    assert "clusterctl stop a && clusterctl stop b" in str(caught.value.hint)
    assert "ones-own" not in f"{caught.value} {caught.value.hint}"


def test_a_decision_does_not_show_its_key() -> None:
    shown = Decision(ANY, ANY, ANY, Changes((), False), "secret")
    assert "secret" not in repr(shown)
