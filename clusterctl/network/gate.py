"""The fabric gate: Ray's own processes on every node, all-reduces between them, said and kept.

What was proven is kept on the head with the containers that it was proven with. While the same
containers run, bootstrap and serve take it as proven; `check --fabric` always proves anew.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.events import EventSink, Note, StageStarted
from clusterctl.engine.executor import Cancelled
from clusterctl.errors import (
    ClusterctlError,
    Interrupted,
    RequirementsNotMet,
    StepFailed,
    raise_all,
)
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.network.gate_record import FabricRecord, read_record, record_file
from clusterctl.network.gate_verdict import FabricVerdict, judge
from clusterctl.node import package
from clusterctl.node.documents import from_json
from clusterctl.node.fabric_documents import FabricReport, FabricSpec
from clusterctl.node.timing import GATE
from clusterctl.ray_cluster.environment import node_environment
from clusterctl.ray_cluster.nodes import container_name, expected_nodes
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport.base import Channel, Transport, last_words
from clusterctl.transport.fanout import failures, fan_out, values

TITLE = "Fabric carries what serving will ask of it"

_LOOK = 0.5  # Seconds between two looks at whether the user asked to stop

_OVER = GATE + deadlines.GATE_SLACK  # Seconds until the gate's program is given up


@dataclass(frozen=True)
class FabricProof:
    record: FabricRecord
    fresh: bool  # Proven by this run
    notes: tuple[str, ...] = ()
    report: FabricReport | None = None


@dataclass(frozen=True)
class FabricGround:
    """The part of a cluster whose fabric is in question: nodes that are up."""

    inventory: Inventory
    topology: Topology
    transports: Mapping[str, Transport]
    facts: Mapping[str, HostFacts]
    driver: Callable[[Transport], ContainerDriver] = driver_for

    @property
    def head(self) -> Transport:
        return self.transports[self.topology.head.host]

    def only(self, hosts: Iterable[str]) -> FabricGround:
        """The same without the other hosts."""
        wanted = set(hosts)
        nodes = tuple(node for node in self.topology.nodes if node.host in wanted)
        held = {name: one for name, one in self.transports.items() if name in wanted}
        return replace(self, topology=Topology(nodes), transports=held)


def ensure_proven(
    ground: FabricGround, sink: EventSink, cancelled: Cancelled | None = None
) -> FabricProof:
    """What is proven for the containers that run now, else the gate. Raises as `prove`, and
    Interrupted once `cancelled` is set."""
    now = incarnations(ground)
    file = record_file(ground.inventory.cluster)
    record = read_record(
        ground.head.run(["cat", file], sudo=True, timeout=deadlines.SMALL_FILE).stdout.encode()
    )
    if record and now.items() <= record.nodes.items():
        sink(Note(record.sentence))
        return FabricProof(record, fresh=False)
    return _prove(ground, now, sink, cancelled)


def prove(ground: FabricGround, sink: EventSink) -> FabricProof:
    """Run the gate, and keep what it proved; what was kept before is void as soon as it begins.

    Raises RequirementsNotMet, RayNotFormed or StepFailed, of all hosts together.
    """
    return _prove(ground, incarnations(ground), sink)


def incarnations(ground: FabricGround) -> dict[str, str]:
    """Host: ID and start of its node container. Raises RequirementsNotMet where none runs."""
    name = container_name(ground.inventory.cluster)

    def one(transport: Transport) -> str:
        found = ground.driver(transport).find(name)
        if found is None or not found.running:
            raise RequirementsNotMet(
                f"{name} does not run, so its fabric cannot be tried",
                hint=f"clusterctl bootstrap {ground.inventory.file}",
            )
        return f"{found.id} {found.started_at}"

    hosts = {node.host: ground.transports[node.host] for node in ground.topology.nodes}
    found = fan_out(hosts, one)
    raise_all(failures(found))
    return values(found)


def _prove(
    ground: FabricGround, now: dict[str, str], sink: EventSink, cancelled: Cancelled | None = None
) -> FabricProof:
    hosts = tuple(node.host for node in ground.topology.nodes)
    sink(StageStarted(TITLE, hosts))
    # Ahead: a gate that hangs or is killed leaves nothing proven.
    _forget(ground)
    report = _run(ground, sink, cancelled or threading.Event())
    verdict = _judged(ground, report)
    raise_all(verdict.errors)
    network = [verdict.network] if verdict.network else []
    record = FabricRecord(time.time(), now, list(verdict.lines), network, report.seconds)
    _keep(ground, record)
    for text in (*verdict.lines, *verdict.notes, f"proven in {report.seconds:.0f} s"):
        sink(Note(text))
    return FabricProof(record, fresh=True, notes=verdict.notes, report=report)


def _judged(ground: FabricGround, report: FabricReport) -> FabricVerdict:
    environments = {
        node.host: node_environment(ground.inventory, ground.topology, node)
        for node in ground.topology.nodes
    }
    return judge(report, ground.topology, environments, ground.facts, ground.inventory.file)


def _run(ground: FabricGround, sink: EventSink, cancelled: Cancelled) -> FabricReport:
    """The gate's program in the head's container; what it says on the way goes to `sink`."""
    accelerator = accelerator_named(ground.inventory.accelerator)
    spec = FabricSpec(expected_nodes(ground.topology), accelerator.gpu_backend)
    name = container_name(ground.inventory.cluster)
    driver = ground.driver(ground.head)
    argv = driver.exec_argv(name, ["python3", package.install_path(), "fabric"])
    with driver.host_open(argv) as channel:
        channel.send(json.dumps(asdict(spec)).encode() + b"\n")
        last = ""
        try:
            for line in _lines(channel, cancelled):
                told = json.loads(line) if line.startswith("{") else {}
                if "report" in told:
                    return from_json(FabricReport, json.dumps(told["report"]))
                if "say" in told:
                    last = told["say"]
                    sink(Note(last))
        except TimeoutError:
            raise _silent(last, ground) from None
        raise _no_report(channel, ground)


def _lines(channel: Channel, cancelled: Cancelled) -> Iterator[str]:
    """What it writes, until its end. Raises Interrupted, and TimeoutError at its deadline."""
    deadline = time.monotonic() + _OVER
    channel.settimeout(_LOOK)
    pending = b""
    while True:
        if cancelled.is_set():
            raise Interrupted("stopped on request while the fabric was tried")
        with suppress(TimeoutError):
            chunk = channel.recv(65536)
            if not chunk:
                return
            *complete, pending = (pending + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in complete)
        if time.monotonic() > deadline:
            raise TimeoutError


def _silent(last: str, ground: FabricGround) -> ClusterctlError:
    """All hosts are waited for: only the program on the head knows of which it had heard."""
    host = ground.head.host.name
    hosts = ", ".join(node.host for node in ground.topology.nodes)
    return StepFailed(
        f"the fabric gate took longer than {_OVER:.0f} s and reported nothing of {hosts}",
        host=host,
        hint=f"clusterctl logs --host {host}, then: clusterctl check {ground.inventory.file} "
        "--fabric",
        detail=f"the last it said: {last or 'nothing'}",
    )


def _no_report(channel: Channel, ground: FabricGround) -> ClusterctlError:
    host = ground.head.host.name
    said = last_words(channel)
    if "can't open file" in said:
        return RequirementsNotMet(
            "its container is of another version of clusterctl, which has no fabric gate",
            host=host,
            hint=f"clusterctl bootstrap {ground.inventory.file}",
        )
    return StepFailed(
        "the fabric gate ended without a report",
        host=host,
        hint=f"clusterctl logs --host {host}",
        detail="\n".join(said.splitlines()[-15:]) or None,
    )


def _forget(ground: FabricGround) -> None:
    """Nothing is proven while there is no such file."""
    file = record_file(ground.inventory.cluster)
    ground.head.run(["rm", "-f", "--", file], sudo=True, timeout=deadlines.SMALL_FILE)


def _keep(ground: FabricGround, record: FabricRecord) -> None:
    """On a full disk nothing is kept, and it is proven again the next time."""
    file = record_file(ground.inventory.cluster)
    text = json.dumps(asdict(record), indent=1) + "\n"
    with suppress(StepFailed):
        ground.head.put(text.encode(), file, mode=0o644, sudo=True)
