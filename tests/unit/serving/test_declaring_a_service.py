"""What stays on the head when a service fails, or when the way to the head does."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from clusterctl.engine.events import Event, Note
from clusterctl.errors import AuthenticationRejected, StepFailed, Unreachable
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import NodeState, ServiceDocument, ServiceState, to_json
from clusterctl.serving.declaration import ChangedByOthers, ContactLost, HostServices
from clusterctl.transport.base import CommandResult
from clusterctl.transport.lock import ClusterLock
from tests.fakes.transport import Call, FakeTransport, starts

INVENTORY = Inventory(
    cluster="demo", image="vllm:1", hosts=(Host(name="gpu1", address="192.0.2.1", role="head"),)
)
FILE = "/etc/clusterctl/demo/services/tiny.json"
NEW = ServiceDocument(
    name="tiny", model="tiny", served_name="tiny", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.1", port=8000, tensor_parallel=1, pipeline_parallel=1, gpus=1, fingerprint="new",
)  # fmt: skip
OLD = ServiceDocument(**{**NEW.__dict__, "fingerprint": "old"})
AS_NEW, AS_OLD = to_json(NEW), to_json(OLD)


class Head(FakeTransport):
    """Its state says what became of the service; `text` is the service's file."""

    def __init__(self, state: str, text: str | None = None) -> None:
        super().__init__()
        self.text = text
        self.on(starts("cat"), stdout=to_json(_saying(state)))
        self.on(lambda argv: "clusterctl-lock" in argv, stdout="held\n")
        self.on(lambda argv: argv[3:4] == ("clusterctl",), stdout="{}")  # The log cannot be read
        self.on(lambda argv: "clusterctl-write" in argv, answer=self._replace)

    def _replace(self, call: Call) -> CommandResult:
        *_, path, before, size = call.argv
        assert path == FILE
        now = "none" if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()
        if now != before:
            return CommandResult(call.argv, 4, "", "")
        self.text = None if size == "gone" else call.stdin.decode()
        return CommandResult(call.argv, 0, "", "")

    def read_file(self, path: str, *, sudo: bool = True) -> bytes | None:
        if path != FILE:
            return super().read_file(path, sudo=sudo)
        return None if self.text is None else self.text.encode()


def run(head: Head, old: ServiceDocument | None, events: list[Event] | None = None) -> None:
    file = head.text.encode() if head.text else None
    with ClusterLock(head, "demo", "serve") as lock:
        sink = (lambda _: None) if events is None else events.append
        HostServices(INVENTORY, head, sink).declare(lock, NEW, old, file)


def test_a_new_service_that_fails_is_withdrawn() -> None:
    head = Head("failed")
    with pytest.raises(StepFailed, match="tiny did not start"):
        run(head, None)
    assert head.text is None


def test_the_cause_of_a_failed_start_is_read_from_the_whole_log_on_the_host() -> None:
    cause = "ERROR 11-02 10:00:00 [core.py:1] ValueError: No available memory for the cache blocks."
    log = "\n".join([cause, *["(APIServer pid=1)   a line of a traceback"] * 150])
    head = Head("failed")
    head.on(lambda argv: argv[3:4] == ("clusterctl",), stdout=json.dumps({"tiny.log": log}))
    with pytest.raises(StepFailed, match="nothing of --gpu-memory-utilization is left"):
        run(head, None)


def test_a_changed_service_that_fails_is_served_as_before() -> None:
    head = Head("failed", AS_OLD)
    with pytest.raises(StepFailed, match="tiny did not start"):
        run(head, OLD)
    assert head.text == AS_OLD


def test_the_failure_of_the_service_outlives_a_failed_withdrawal() -> None:
    head = Head("failed")
    gone = lambda argv: "clusterctl-write" in argv and "gone" in argv  # noqa: E731
    head.on(gone, raises=Unreachable("no route"))
    events: list[Event] = []

    with pytest.raises(StepFailed, match="tiny did not start"):
        run(head, None, events)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert "no route" in notes[-1]
    assert "clusterctl stop tiny" in notes[-1]


def test_a_service_out_of_sight_stays_declared() -> None:
    head = Head("loading", AS_OLD).on(starts("cat"), raises=AuthenticationRejected("sudo: no"))
    with pytest.raises(ContactLost):
        run(head, OLD)
    assert head.text == AS_NEW


@pytest.mark.parametrize(
    ("meanwhile", "said"),
    [(None, "was stopped by someone else meanwhile"), (AS_OLD, "was changed by someone")],
)
def test_what_others_did_while_this_run_was_frozen_stays_so(
    meanwhile: str | None, said: str
) -> None:
    head, looked = Head("loading", AS_OLD), to_json(_without_services())

    def look(call: Call) -> CommandResult:
        head.text = meanwhile
        return CommandResult(call.argv, 0, looked, "")

    head.on(starts("cat"), answer=look)
    with pytest.raises(ChangedByOthers, match=said):
        run(head, OLD)
    assert head.text == meanwhile


def test_a_service_that_fails_after_others_changed_it_is_not_put_back() -> None:
    head = Head("failed", AS_OLD)
    failing = to_json(_saying("failed"))

    def look(call: Call) -> CommandResult:
        head.text = None
        return CommandResult(call.argv, 0, failing, "")

    head.on(starts("cat"), answer=look)
    events: list[Event] = []
    with pytest.raises(StepFailed, match="tiny did not start"):
        run(head, OLD, events)
    assert head.text is None
    assert "changed by someone else meanwhile" in events[-1].text  # type: ignore[union-attr]


def test_a_file_that_is_another_by_now_is_not_written_over() -> None:
    head = Head("loading", AS_OLD)
    with (
        ClusterLock(head, "demo", "serve") as lock,
        pytest.raises(StepFailed, match="was changed by someone else meanwhile"),
    ):
        HostServices(INVENTORY, head, lambda _: None).declare(lock, NEW, None, None)
    assert head.text == AS_OLD


def _saying(state: str) -> NodeState:
    service = ServiceState("tiny", state, 0.0, "new", last_error=["ValueError: broken"])
    return replace(_without_services(), services=[service])


def _without_services() -> NodeState:
    return NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0)
