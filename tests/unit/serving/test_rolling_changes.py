"""The order in which replicas change, and what is left when a change fails."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from typing import Any

import pytest

from clusterctl import deadlines
from clusterctl.engine.events import Event, Note, StepStarted
from clusterctl.errors import StepFailed
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.node.documents import (
    GatewayMember,
    GatewayState,
    Member,
    MembersDocument,
    NodeState,
    ServiceDocument,
    ServiceState,
    declared_dir,
    from_json,
    replica_name,
    standby_name,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.operations.restarting import again as restarted
from clusterctl.serving import rollout
from clusterctl.serving.arguments import Layout
from clusterctl.serving.rollout import Rollout, gateway_let_go
from clusterctl.serving.service import PlannedReplica, difference
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import CommandResult
from clusterctl.transport.lock import ClusterLock
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import survey_of
from tests.fakes.transport import Call, FakeTransport, starts

PATHS = NodePaths("demo")
MEMBERS = f"{PATHS.members}/tiny.json"
HOSTS = ("gpu1", "gpu2", "gpu3")
CLOCK = 1.0
INVENTORY = Inventory(
    cluster="demo",
    image="vllm:1",
    hosts=tuple(
        Host(name=name, address=f"10.0.0.{n}", role="worker" if n > 1 else "head", gpus=(Gpu(),))
        for n, name in enumerate(HOSTS, 1)
    ),
)


def document(number: int, flag: str = "1") -> ServiceDocument:
    argv = ["vllm", "serve", "/m", "--seed", flag]
    return ServiceDocument(
        replica_name("tiny", number), "m", "m", argv, {}, f"10.0.0.{number}", 8100, 1, 1, 1, flag,
        shutdown_timeout=0.0, replica=number, node_ips=[f"10.0.0.{number}"],
    )  # fmt: skip


class World:
    """Hosts whose files change, and whose supervisors follow them at once; `broken`: the value of
    --seed with which vLLM does not start. `story` has every write."""

    def __init__(self, *declared: ServiceDocument, broken: str = "") -> None:
        self.broken, self.story = broken, list[str]()
        self.standby_works = 0  # How often the first host is looked at until its standby is idle
        self.files: dict[str, dict[str, bytes]] = {name: {} for name in HOSTS}
        self.events: list[Event] = []
        self._guard = threading.Lock()
        for each in declared:
            host = f"gpu{each.replica}"
            self.files[host][f"{PATHS.services}/{each.name}.json"] = to_json(each).encode()
        if declared:
            self.files["gpu1"][MEMBERS] = to_json(members(*declared)).encode()
        self.files["gpu1"][str(PATHS.api_key)] = b"key\n"
        self.transports = {host.name: self._transport(host) for host in INVENTORY.hosts}

    def _transport(self, host: Host) -> FakeTransport:
        transport, files = FakeTransport(host), self.files[host.name]

        def read(call: Call) -> CommandResult:
            path = call.argv[-1]
            text = self.state(host.name) if path == str(PATHS.state) else None
            data = text if text is not None else files.get(path, b"").decode()
            return CommandResult(call.argv, 0 if data else 66, data, "")

        def write(call: Call) -> CommandResult:
            *_, path, before, size = call.argv
            if path.startswith(declared_dir("demo")):  # The head's copy of another host's document
                return CommandResult(call.argv, 0, "", "")
            with self._guard:
                now = hashlib.sha256(files[path]).hexdigest() if path in files else "none"
                if now != before:
                    return CommandResult(call.argv, 4, "", "")
                files.pop(path, None)
                if size != "gone":
                    files[path] = call.stdin
                told = self._told(path, call.stdin if size != "gone" else b"")
                self.story.append(f"{told} too soon" if self.standby_works else told)
            return CommandResult(call.argv, 0, "", "")

        transport.on(starts("cat"), answer=read)
        transport.on(lambda argv: "clusterctl-lock" in argv, stdout="held\n")
        transport.on(lambda argv: argv[3:4] == ("clusterctl",), stdout="{}")  # The logs are empty
        transport.on(lambda argv: "clusterctl-held" in argv, stdout="")
        transport.on(lambda argv: "clusterctl-write" in argv, answer=write)
        return transport

    @staticmethod
    def _told(path: str, data: bytes) -> str:
        name = path.rpartition("/")[2].removesuffix(".json")
        if path == MEMBERS:
            listed = from_json(MembersDocument, data.decode()).members
            return " ".join(f"{each.replica}{'-' if each.draining else ''}" for each in listed)
        if not data:
            return f"{name} gone"
        return f"{name} {from_json(ServiceDocument, data.decode()).argv[-1]}"

    def state(self, host: str) -> str:
        declared = [
            from_json(ServiceDocument, data.decode())
            for path, data in self.files[host].items()
            if path.startswith(str(PATHS.services))
        ]
        services = [
            ServiceState(each.name, "failed", 0.0, each.fingerprint, last_error=["broken"])
            if each.argv[-1] == self.broken
            else ServiceState(each.name, "ready", 0.0, each.fingerprint)
            for each in declared
        ]
        standbys = []
        if host == "gpu1" and self.standby_works:
            self.standby_works -= 1
            standbys = [ServiceState(standby_name("tiny"), "ready", 0.0, "1", running=1)]
        return to_json(
            NodeState(
                host, "worker", CLOCK, "1", "up", 0.0, 0, services=services, standbys=standbys
            )
        )

    def survey(self) -> Survey:
        answers = {
            name: Probe(
                replace(host_facts(nic("eth0", f"10.0.0.{n}/24")), clock=CLOCK),
                {**self.files[name], str(PATHS.state): self.state(name).encode()},
                (), (), None,
            )
            for n, name in enumerate(HOSTS, 1)
        }  # fmt: skip
        return survey_of(INVENTORY, answers, self.transports)

    def run(
        self,
        *wanted: ServiceDocument,
        surplus: tuple[str, ...] = (),
        again: tuple[int, ...] = (),
    ) -> None:
        survey = self.survey()
        replicas = [
            PlannedReplica(
                document=each,
                layout=Layout(1, 1, seats=(host,)),
                host=host,
                old=survey.documents[host].get(each.name),
                again=each.replica in again,
            )
            for each in wanted
            for host in (f"gpu{each.replica}",)
        ]
        with ClusterLock(self.transports["gpu1"], "demo", "serve") as lock:
            final = members(*wanted)
            ending = [survey.replicas[name] for name in surplus]
            Rollout(survey, replicas, ending, final, "key", lock, self.events.append).run()


def members(*documents: ServiceDocument) -> MembersDocument:
    listed = [Member(each.replica, f"gpu{each.replica}", each.host, 8100) for each in documents]
    return MembersDocument("tiny", ["m"], 8000, listed)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def proven(planned: PlannedReplica, *_: Any) -> str:
        return planned.document.name

    monkeypatch.setattr(rollout, "prove", proven)
    monkeypatch.setattr(deadlines, "GATEWAY_NOTICE", 0.0)
    # A fake channel ends at once, and the lock with it.
    monkeypatch.setattr(ClusterLock, "ensure_held", lambda _: None)


def test_one_replica_at_a_time_leaves_the_gateway_and_comes_back() -> None:
    world = World(document(1), document(2))
    world.run(document(1, "2"), document(2, "2"))
    assert world.story == ["1- 2", "tiny 2", "1 2", "1 2-", "tiny@2 2", "1 2"]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ((1, 2), "send its new requests to the other replicas"),
        ((1,), "finish its requests: no other replica serves"),
    ],
)
def test_a_drain_says_who_gets_the_requests(declared: tuple[int, ...], said: str) -> None:
    world = World(*map(document, declared))
    world.run(document(1, "2"), *map(document, declared[1:]))
    assert [one.change.summary for one in world.events if isinstance(one, StepStarted)] == [said]


def test_requests_of_a_standby_are_finished_too() -> None:
    world = World(replace(document(1), shutdown_timeout=10.0))
    world.standby_works = 5
    world.run(document(1, "2"))
    assert world.story == ["1- too soon", "tiny 2", "1"]


def test_a_broken_version_is_undone_and_the_others_are_never_touched() -> None:
    world = World(document(1), document(2), broken="2")
    with pytest.raises(StepFailed, match="tiny did not start"):
        world.run(document(1, "2"), document(2, "2"))
    assert world.story == ["1- 2", "tiny 2", "tiny 1", "1 2"]
    notes = [event.text for event in world.events if isinstance(event, Note)]
    assert notes[-1] == "tiny serves its previous version again; 1 other never stopped"


def test_a_single_replica_that_is_restored_gets_requests_again() -> None:
    """From the gateway, once it is ready: nobody else serves, and nobody waits for it here."""
    world = World(document(1), broken="2")
    with pytest.raises(StepFailed, match="tiny did not start"):
        world.run(document(1, "2"))
    assert world.story == ["1-", "tiny 2", "tiny 1", "1"]


def test_a_second_run_continues_where_a_killed_one_ended() -> None:
    world = World(document(1, "2"), document(2))
    world.run(document(1, "2"), document(2, "2"))
    assert world.story == ["1 2-", "tiny@2 2", "1 2"]


def test_a_new_replica_is_added_beside_those_that_serve() -> None:
    world = World(document(1), document(2))
    world.run(document(1), document(2), document(3))
    assert world.story == ["1 2 3", "tiny@3 1"]
    assert world.transports["gpu3"].files[str(PATHS.api_key)] == (b"key", 0o600, True)


def test_a_new_replica_that_fails_is_withdrawn() -> None:
    world = World(document(1), broken="2")
    with pytest.raises(StepFailed, match="tiny@2 did not start"):
        world.run(document(1), document(2, "2"))
    assert world.story == ["1 2", "tiny@2 2", "tiny@2 gone", "1"]


@pytest.fixture
def two_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version 2 starts, and its ranks are not where they belong."""

    def prove(planned: PlannedReplica, *_: Any) -> str:
        if planned.document.argv[-1] == "2":
            raise StepFailed("the ranks are not where the plan puts them")
        return planned.document.name

    monkeypatch.setattr(rollout, "prove", prove)


@pytest.mark.usefixtures("two_proves_nothing")
def test_a_version_that_is_ready_and_not_proven_is_undone() -> None:
    world = World(document(1), document(2))
    with pytest.raises(StepFailed, match="the ranks"):
        world.run(document(1, "2"), document(2, "2"))
    assert world.story == ["1- 2", "tiny 2", "tiny 1", "1 2"]


@pytest.mark.usefixtures("two_proves_nothing")
def test_a_new_replica_that_is_not_proven_leaves_nothing_behind() -> None:
    world = World(document(1))
    with pytest.raises(StepFailed, match="the ranks"):
        world.run(document(1), document(2, "2"))
    assert world.story == ["1 2", "tiny@2 2", "tiny@2 gone", "1"]


def test_a_surplus_replica_is_drained_before_it_stops() -> None:
    world = World(document(1), document(2))
    world.run(document(1), surplus=("tiny@2",))
    assert world.story == ["1 2-", "tiny@2 gone", "1"]


def test_a_second_run_writes_nothing() -> None:
    world = World(document(1), document(2))
    world.run(document(1), document(2))
    assert world.story == []


def test_a_restart_takes_one_replica_at_a_time_and_leaves_serve_nothing_to_change() -> None:
    world = World(document(1), document(2))
    anew = restarted(document(1)), restarted(document(2))
    world.run(*anew, again=(1, 2))
    assert world.story == ["1- 2", "tiny 1", "1 2", "1 2-", "tiny@2 1", "1 2"]

    assert difference(document(1), anew[0]) == []
    assert anew[0].fingerprint not in (document(1).fingerprint, restarted(document(1)).fingerprint)


@pytest.mark.parametrize(
    ("state", "admitted", "in_flight", "gone"),
    [
        ("up", True, 0, False),
        ("up", False, 2, False),
        ("up", False, 0, True),
        ("backing-off", True, 2, True),  # It passes nothing on to anyone
    ],
)
def test_a_gateway_has_let_go_of_a_replica_without_requests(
    state: str, admitted: bool, in_flight: int, gone: bool
) -> None:
    other = GatewayMember("tiny", 2, "gpu2", admitted=True, in_flight=5)
    mine = GatewayMember("tiny", 1, "gpu1", admitted, in_flight=in_flight)
    assert gateway_let_go(GatewayState(state, members=[mine, other]), document(1)) is gone
