"""What can be wrong between hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from tests.unit.facts.judged import notes, problems

Captured = Callable[[str], Probe]


@pytest.fixture
def like(captured: Captured) -> Callable[..., HostFacts]:
    """A healthy host of its own, with changes."""
    healthy = captured("ubuntu-24.04-8-gpus").facts

    def make(name: str, **changes: Any) -> HostFacts:
        own = {
            "hostname": name,
            "hostname_addresses": ("10.1.0.1",),
            "machine_id": f"machine-{name}",
            "boot_id": f"boot-{name}",
            "listening_ports": (22,),
            "clock_offset": 0.0,
        }
        return replace(healthy, **{**own, **changes})

    return make


Like = Callable[..., HostFacts]


def cluster(*names: str, **fields: Any) -> Inventory:
    hosts = tuple(
        Host(name=name, address=f"{name}.example", role="worker" if n else "head")
        for n, name in enumerate(names)
    )
    return Inventory(cluster="demo", image="vllm:1", hosts=hosts, **fields)


def found(*facts: HostFacts) -> list[RequirementsNotMet]:
    by_name = {f"h{number}": one for number, one in enumerate(facts)}
    return list(problems(cluster(*by_name), by_name))


def test_hosts_of_one_kind_have_no_problem(like: Like) -> None:
    assert found(like("a"), like("b"), like("c")) == []


def test_two_kinds_of_processor(like: Like) -> None:
    arm = like("b")
    (problem,) = found(like("a"), replace(arm, os=replace(arm.os, architecture="aarch64")))
    assert problem.summary == (
        "all hosts use one image, but their processors differ: x86_64 on h0; aarch64 on h1"
    )


def test_one_machine_under_two_names(like: Like) -> None:
    (problem,) = found(like("a"), like("a"))
    assert str(problem) == "h1: is the same machine as h0: same machine ID and boot ID"


def test_cloned_machines_are_two(like: Like) -> None:
    assert found(like("a"), like("b", machine_id="machine-a")) == []


def test_unknown_ids_are_not_equal_ids(like: Like) -> None:
    empty = {"machine_id": "", "boot_id": ""}
    assert found(like("a", **empty), like("b", **empty)) == []


def test_two_machines_of_one_name(like: Like) -> None:
    (problem,) = found(like("a"), like("b", hostname="A"))
    assert str(problem) == "h1: calls itself A, as h0 does"
    assert problem.hint == "sudo hostnamectl set-hostname h1"


@pytest.mark.parametrize(
    ("offsets", "off"),
    [
        ((0.1, 0.0, -0.2), {}),
        ((0.0, 0.0, 9.0), {"h2": "9 s ahead of"}),
        # The operator's own clock may be the wrong one.
        ((100.0, 100.2, 99.9), {}),
        ((100.0, 92.0, 100.0, 100.0), {"h1": "8 s behind"}),
        # Of two that disagree, the one that agrees with the operator is right.
        ((0.0, -60.0), {"h1": "60 s behind"}),
        ((0.0,), {}),
    ],
)
def test_clocks_apart(offsets: tuple[float, ...], off: dict[str, str], like: Like) -> None:
    saw = found(*(like(f"n{n}", clock_offset=offset) for n, offset in enumerate(offsets)))
    assert {problem.host: problem.summary for problem in saw} == {
        host: f"its clock is {text} the others" for host, text in off.items()
    }


def test_a_clock_that_could_not_be_read_has_no_vote(like: Like) -> None:
    assert found(like("a"), like("b", clock=0.0, clock_offset=-99.0)) == []


def test_different_mtus_on_the_fabric_are_noted(like: Like) -> None:
    small = like("b")
    nics = tuple(replace(nic, mtu=1500) for nic in small.nics)
    facts = {"h0": like("a"), "h1": replace(small, nics=nics)}
    inventory = cluster("h0", "h1", network={"subnet": "10.2.0.0/24"})
    assert [text for text in notes(inventory, facts) if "MTU" in text] == [
        "the MTU differs between hosts: 9000 on h0 (ens5f0np0); 1500 on h1 (ens5f0np0); "
        "large packets may be lost"
    ]
    assert not [text for text in notes(cluster("h0", "h1"), facts) if "MTU" in text]
