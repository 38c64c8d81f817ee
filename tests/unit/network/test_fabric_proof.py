"""When the fabric gate runs, what is kept of it, and what makes that void."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from clusterctl.commands.check import Report, with_fabric
from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.engine.events import Event, Note
from clusterctl.errors import Interrupted, RequirementsNotMet, StepFailed
from clusterctl.facts.model import GpuProcess
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network import gate
from clusterctl.network.gate import (
    FabricRecord,
    GateScope,
    ensure_proven,
    incarnations,
    read_record,
    record_file,
)
from clusterctl.node.fabric_documents import Collective, FabricReport, RankReport
from clusterctl.operations.session import Session
from clusterctl.planning.cluster_hardware import measured_network
from clusterctl.planning.speed import LinkSpeed
from clusterctl.ray_cluster.topology import Node, Topology
from clusterctl.transport.base import CommandResult, Transport
from clusterctl.transport.credentials import Credentials
from tests.fakes.container_engine import foreign
from tests.fakes.host_facts import gpus, host_facts
from tests.fakes.transport import FakeChannel, FakeTransport, starts

GLOO = Collective("gloo", 2, 2, 6e7, 1e-4, 2**24)
WENT_WELL = FabricReport(5.0, collectives=[GLOO])
BROKEN = FabricReport(
    3.0,
    "gloo",
    "not within 30 s",
    ranks=[RankReport(0, "gpu1", -1, "joined", "gloo"), RankReport(1, "gpu2", -1, "imported")],
)
FILE = record_file("demo")


def told(report: FabricReport) -> str:
    return json.dumps({"say": "all-reduce over gloo"}) + "\n" + json.dumps(
        {"report": asdict(report)}
    ) + "\n"  # fmt: skip


def record(**nodes: str) -> FabricRecord:
    return FabricRecord(1.0, nodes, ["Gloo: fine"], [GLOO])


class Inspecting(DockerDriver):
    """Finds the node container of its host, started once."""

    def __init__(self, transport: Transport, *, running: bool) -> None:
        super().__init__(transport)
        self._status = "running" if running else "exited"

    def find(self, name: str) -> Container:
        host = self.host
        return replace(foreign(name), id=f"id-{host}", started_at="start", status=self._status)


class Lab:
    """Two hosts whose containers run; `head` answers for the gate."""

    def __init__(self, kept: FabricRecord | None = None, gate: str = told(WENT_WELL)) -> None:
        self.hosts = {
            name: FakeTransport(Host(name=name, address=name)) for name in ("gpu1", "gpu2")
        }
        self.up = set(self.hosts)
        self.head = self.hosts["gpu1"]
        text = json.dumps(asdict(kept)) if kept else ""
        self.head.on(["cat", FILE], stdout=text)
        self.head.on(starts("docker", "exec"), stdout=gate)
        self.head.on(starts("rm", "-f"))
        self.events: list[Event] = []

    @property
    def ground(self) -> GateScope:
        inventory = Inventory(
            cluster="demo",
            image="i",
            accelerator="cpu",
            source=Path("/srv/demo.yaml"),
            hosts=(
                Host(name="gpu1", address="gpu1", role="head"),
                Host(name="gpu2", address="gpu2"),
            ),
        )
        nodes = (
            Node("gpu1", "head", "10.0.0.1", "eth0", ("eth1",), "eth1", (), gpus=1),
            Node("gpu2", "worker", "10.0.0.2", "ens2", ("ens3",), "ens3", (), gpus=1),
        )
        return GateScope(inventory, Topology(nodes), self.hosts, {}, self.driver)

    def driver(self, transport: Transport) -> ContainerDriver:
        """Docker's, but for what it inspects."""
        return Inspecting(transport, running=transport.host.name in self.up)

    @property
    def gate_runs(self) -> int:
        return sum(call.argv[:2] == ("docker", "exec") for call in self.head.calls)

    @property
    def forgotten(self) -> bool:
        """What was kept was removed before the gate ran."""
        ran = [call.argv for call in self.head.calls]
        gate = next(n for n, argv in enumerate(ran) if argv[:2] == ("docker", "exec"))
        return ("rm", "-f", "--", FILE) in ran[:gate]

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]


def test_the_gate_runs_once_and_what_it_proved_is_kept() -> None:
    lab = Lab()
    proof = ensure_proven(lab.ground, lab.events.append)
    assert proof.fresh
    assert lab.gate_runs == 1
    assert "all-reduce over gloo" in lab.notes
    kept = read_record(lab.head.files[FILE][0])
    assert kept is not None
    assert kept.nodes == {"gpu1": "id-gpu1 start", "gpu2": "id-gpu2 start"}
    assert kept.network == [GLOO]


def test_speeds_that_busy_gpus_reached_are_shown_and_not_kept() -> None:
    """Estimates with them were up to 38 % too low."""
    lab = Lab()
    training = GpuProcess("GPU-0", 7, "python3", 2**30, "")
    busy = host_facts(gpus=replace(gpus(1), processes=(training,)))
    ground = replace(lab.ground, facts={"gpu1": host_facts(), "gpu2": busy})
    proof = ensure_proven(ground, lab.events.append, links_proven=True)
    assert proof.record.network == [GLOO]
    kept = read_record(lab.head.files[FILE][0])
    assert kept is not None
    assert kept.nodes, "the links are proven all the same"
    assert kept.network == []
    assert "programs use the GPUs of gpu2: estimates do not use these speeds" in lab.notes


def test_what_was_proven_for_these_containers_is_not_proven_again() -> None:
    lab = Lab(record(gpu1="id-gpu1 start", gpu2="id-gpu2 start", gpu3="id-gpu3 start"))
    proof = ensure_proven(lab.ground, lab.events.append)
    assert not proof.fresh
    assert lab.gate_runs == 0
    assert lab.notes[0].startswith("fabric proven at ")


def test_a_container_that_started_since_makes_it_void() -> None:
    lab = Lab(record(gpu1="id-gpu1 start", gpu2="id-gpu2 earlier"))
    assert ensure_proven(lab.ground, lab.events.append).fresh
    assert lab.gate_runs == 1


def test_check_proves_anew_whatever_is_kept() -> None:
    lab = Lab(record(gpu1="id-gpu1 start", gpu2="id-gpu2 start"))
    assert ensure_proven(lab.ground, lab.events.append, again=True).fresh
    assert lab.gate_runs == 1


def test_a_failed_gate_makes_what_is_kept_void_and_names_the_host() -> None:
    lab = Lab(gate=told(BROKEN))
    with pytest.raises(RequirementsNotMet, match="rank 1 did not join") as caught:
        ensure_proven(lab.ground, lab.events.append, again=True)
    assert caught.value.host == "gpu2"
    assert lab.forgotten
    assert FILE not in lab.head.files


@pytest.mark.parametrize(
    ("stderr", "kind", "said"),
    [
        ("python3: can't open file '/opt/x'", RequirementsNotMet, "without a fabric gate"),
        ("Error: No such container", StepFailed, "ended without a report"),
    ],
)
def test_a_gate_that_cannot_run_says_why(stderr: str, kind: type[Exception], said: str) -> None:
    lab = Lab()
    lab.head.on(starts("docker", "exec"), stderr=stderr, status=2)
    with pytest.raises(kind, match=said):
        ensure_proven(lab.ground, lab.events.append, again=True)
    assert lab.forgotten, "who knows what would have come of it"


def test_what_docker_says_on_stdout_is_told_too() -> None:
    """Docker 26 writes this to stdout, where the gate's own lines are."""
    lab = Lab()
    words = "OCI runtime exec failed: exec failed: unable to start container process"
    lab.head.on(starts("docker", "exec"), stdout=f"{words}\n", stderr="exit status 126", status=126)
    with pytest.raises(StepFailed, match="ended without a report") as caught:
        ensure_proven(lab.ground, lab.events.append, again=True)
    assert caught.value.detail == f"{words}\nexit status 126"


@pytest.mark.parametrize("line", ["{", '{"report": 7}', '{"report": {"seconds": "soon"}}'])
def test_a_gate_that_prints_nonsense_is_an_error_of_its_host(line: str) -> None:
    lab = Lab(gate=line + "\n")
    with pytest.raises(StepFailed, match="printed a malformed line") as caught:
        ensure_proven(lab.ground, lab.events.append)
    assert caught.value.host == "gpu1"


class Mute(FakeChannel):
    """Says what it does, and then nothing: nothing comes, and nothing ends."""

    def recv(self, size: int) -> bytes:
        data = super().recv(size)
        if not data:
            raise TimeoutError
        return data


def test_a_gate_that_says_nothing_more_is_given_up_and_its_last_words_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab()
    monkeypatch.setattr(gate, "_OVER", 0.05)
    said = json.dumps({"say": "2 ranks import torch"}) + "\n"
    mute = Mute(CommandResult((), 0, said, ""))
    monkeypatch.setattr(lab.head, "open_channel", lambda *_, **__: mute)

    with pytest.raises(StepFailed, match="reported nothing about gpu1, gpu2") as caught:
        ensure_proven(lab.ground, lab.events.append, again=True)

    assert caught.value.detail == "last message: 2 ranks import torch"
    assert "clusterctl check /srv/demo.yaml --fabric" in (caught.value.hint or "")
    assert mute.closed


def test_a_host_whose_container_does_not_run_is_named() -> None:
    lab = Lab()
    lab.up.remove("gpu2")
    with pytest.raises(RequirementsNotMet, match="is not running") as caught:
        incarnations(lab.ground)
    assert caught.value.host == "gpu2"
    assert caught.value.hint == "clusterctl bootstrap /srv/demo.yaml"


def test_check_says_that_the_gate_was_not_run_where_something_is_wrong() -> None:
    report = Report({}, {}, ("a note",), (RequirementsNotMet("its clock is 300 s behind"),))
    session = Session(Lab().ground.inventory, (), lambda _: None, Credentials())
    found = with_fabric(report, session)
    assert found.errors == report.errors
    assert found.notes == ("a note", "the fabric gate was not run: fix the other problems first")


def test_a_request_to_stop_ends_it() -> None:
    lab, stopped = Lab(), threading.Event()
    stopped.set()
    with pytest.raises(Interrupted):
        ensure_proven(lab.ground, lab.events.append, stopped)


def test_some_hosts_are_proven_by_a_gate_over_more() -> None:
    lab = Lab(record(gpu1="id-gpu1 start", gpu2="id-gpu2 start"))
    alone = lab.ground.only({"gpu1"})
    assert [node.host for node in alone.topology.nodes] == ["gpu1"]
    assert not ensure_proven(alone, lab.events.append).fresh


@pytest.mark.parametrize("data", [b"", b"{", b'{"time": 1}', None])
def test_a_file_that_is_none_of_ours_proves_nothing(data: bytes | None) -> None:
    assert read_record(data) is None


def test_the_speed_model_takes_what_was_measured_between_these_hosts() -> None:
    ground = Lab().ground
    assert measured_network(record(gpu1="x", gpu2="y"), ground.topology) == LinkSpeed(6e7, 1e-4)
    assert measured_network(record(gpu1="x"), ground.topology) is None
    assert measured_network(None, ground.topology) is None
