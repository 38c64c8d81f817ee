"""What stays on the head when a service fails, or when the way to the head does."""

from __future__ import annotations

import pytest

from clusterctl.engine.events import Event, Note
from clusterctl.errors import AuthenticationRejected, StepFailed, Unreachable
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import NodeState, ServiceDocument, ServiceState, from_json, to_json
from clusterctl.workflows.declared import declare
from clusterctl.workflows.service_watch import OutOfSight
from tests.fakes.transport import FakeTransport, starts

INVENTORY = Inventory(
    cluster="demo", image="vllm:1", hosts=(Host(name="gpu1", address="192.0.2.1", role="head"),)
)
FILE = "/etc/clusterctl/demo/services/tiny.json"
REMOVED = ("rm", "-f", "--", FILE)
NEW = ServiceDocument(
    name="tiny", model="tiny", served_name="tiny", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.1", port=8000, tensor_parallel=1, pipeline_parallel=1, gpus=1, fingerprint="new",
)  # fmt: skip
OLD = ServiceDocument(**{**NEW.__dict__, "fingerprint": "old"})


def head(state: str) -> FakeTransport:
    service = ServiceState("tiny", state, 0.0, "new", last_error=["ValueError: broken"])
    node = NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0, services=[service])
    return FakeTransport().on(starts("cat"), stdout=to_json(node)).on(REMOVED)


def removed(transport: FakeTransport) -> bool:
    return any(call.argv == REMOVED for call in transport.calls)


def declared(transport: FakeTransport) -> ServiceDocument:
    return from_json(ServiceDocument, transport.files[FILE][0].decode())


def test_a_new_service_that_fails_is_withdrawn() -> None:
    transport = head("backing-off")

    with pytest.raises(StepFailed):
        declare(INVENTORY, transport, NEW, None, lambda _: None)
    assert removed(transport)


def test_a_changed_service_that_fails_is_served_as_before() -> None:
    transport = head("backing-off")

    with pytest.raises(StepFailed):
        declare(INVENTORY, transport, NEW, OLD, lambda _: None)
    assert declared(transport) == OLD
    assert not removed(transport)


def test_the_failure_of_the_service_outlives_a_failed_withdrawal() -> None:
    transport = head("backing-off").on(REMOVED, raises=Unreachable("no route"))
    events: list[Event] = []

    with pytest.raises(StepFailed, match="tiny did not start"):
        declare(INVENTORY, transport, NEW, None, events.append)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert "no route" in notes[-1]
    assert "clusterctl stop tiny" in notes[-1]


def test_a_service_out_of_sight_stays_declared() -> None:
    transport = head("loading").on(starts("cat"), raises=AuthenticationRejected("sudo: no"))

    with pytest.raises(OutOfSight):
        declare(INVENTORY, transport, NEW, OLD, lambda _: None)
    assert declared(transport) == NEW
    assert not removed(transport)
