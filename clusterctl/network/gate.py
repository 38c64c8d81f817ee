"""The fabric gate: tests every pair of hosts, then all-reduces between processes that Ray starts on
every node.

The result is stored on the head with the IDs of the containers that were tested. While those
containers run, bootstrap and serve rely on it; `check --fabric` always runs the gate again.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.events import EventSink, Note, StageStarted
from clusterctl.engine.executor import Cancelled
from clusterctl.errors import MALFORMED, Interrupted, RequirementsNotMet, StepFailed, raise_all
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.network.gate_verdict import judge
from clusterctl.network.pairs import judgement
from clusterctl.network.pairs.model import PairResults
from clusterctl.network.pairs.probe import IN_USE, probe_pairs, ray_ports
from clusterctl.node import package
from clusterctl.node.documents import from_json, measured_dir
from clusterctl.node.fabric_documents import Collective, FabricReport, FabricSpec
from clusterctl.node.timing import GATE
from clusterctl.ray_cluster.nodes import container_name, expected_nodes, node_environment
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport.base import LONGEST_LINE, Channel, Transport, last_words
from clusterctl.transport.fanout import failures, fan_out, values

TITLE = "Fabric gate: collectives across all hosts"

_KEPT_LINES = 15  # Of each stream of a program that ended without a report
_LOOK = 0.5  # seconds between two checks whether the user asked to stop
_OVER = GATE + deadlines.GATE_SLACK  # seconds until the gate's program is abandoned


@dataclass(frozen=True)
class FabricRecord:
    """The gate's results and the containers they apply to: fabric.json on the head."""

    time: float  # Unix seconds on the operator's clock
    nodes: dict[str, str]  # host: ID and start time of its node container
    lines: list[str]
    # Collective between hosts over the transport of tensors; empty on a single host
    network: list[Collective]
    seconds: float = 0.0

    @property
    def when(self) -> str:
        """Local time of the proof, for the user."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.time))

    @property
    def sentence(self) -> str:
        """When the fabric was proven, and the results, for the user."""
        return f"fabric proven at {self.when}: {'; '.join(self.lines)}"


def record_file(cluster: str) -> str:
    """The path of fabric.json on the head."""
    return f"{measured_dir(cluster)}/fabric.json"


def read_record(data: bytes | None) -> FabricRecord | None:
    """Parse fabric.json; return None if it is missing or was written by another version."""
    try:
        return from_json(FabricRecord, data.decode()) if data else None
    except ValueError:
        return None


@dataclass(frozen=True)
class FabricProof:
    record: FabricRecord
    fresh: bool  # the gate ran just now, rather than the record being reused
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateScope:
    """The nodes that a gate covers; all of them are up."""

    inventory: Inventory
    topology: Topology
    transports: Mapping[str, Transport]
    facts: Mapping[str, HostFacts]
    driver: Callable[[Transport], ContainerDriver] = driver_for

    @property
    def head(self) -> Transport:
        return self.transports[self.topology.head.host]

    def only(self, hosts: Iterable[str]) -> GateScope:
        """Return this scope restricted to `hosts`."""
        wanted = set(hosts)
        nodes = tuple(node for node in self.topology.nodes if node.host in wanted)
        held = {name: one for name, one in self.transports.items() if name in wanted}
        facts = {name: one for name, one in self.facts.items() if name in wanted}
        return replace(self, topology=Topology(nodes), transports=held, facts=facts)


def ensure_proven(
    scope: GateScope,
    sink: EventSink,
    cancelled: Cancelled | None = None,
    *,
    again: bool = False,
    links_proven: bool = False,
) -> FabricProof:
    """Return the record for the running containers if there is one; else run the gate and store its
    result. `again`: run it even if there is a record. `links_proven`: the pairs of hosts were just
    tested.

    Raises RequirementsNotMet, RayNotFormed or StepFailed with the errors of all hosts together, and
    Interrupted once `cancelled` is set.
    """
    now = incarnations(scope)
    file = record_file(scope.inventory.cluster)
    record = None if again else read_record(scope.head.read_file(file))
    if record and now.items() <= record.nodes.items():
        sink(Note(record.sentence))
        return FabricProof(record, fresh=False)
    hosts = tuple(node.host for node in scope.topology.nodes)
    sink(StageStarted(TITLE, hosts))
    # Before the gate runs: if it hangs or is killed, no record may remain.
    scope.head.run(["rm", "-f", "--", file], sudo=True, timeout=deadlines.SMALL_FILE)
    if len(hosts) > 1 and not links_proven:
        sink(Note("testing the connections between all hosts"))
        require_links(scope, sink)
    report = _run(scope, sink, cancelled or threading.Event())
    environments = {
        node.host: node_environment(scope.inventory, scope.topology, node)
        for node in scope.topology.nodes
    }
    verdict = judge(report, scope.topology, environments, scope.facts, scope.inventory.file)
    raise_all(verdict.errors)
    network = [verdict.network] if verdict.network else []
    record = FabricRecord(time.time(), now, list(verdict.lines), network, report.seconds)
    known = {host: scope.facts[host] for host in hosts if host in scope.facts}
    busy = [host for host, facts in known.items() if facts.gpus.processes]
    # Estimates of speed with what busy GPUs reached were up to 38 % too low.
    kept = replace(record, network=[]) if busy else record
    with suppress(StepFailed):  # such as a full disk: the gate then runs again next time
        text = json.dumps(asdict(kept), indent=1) + "\n"
        scope.head.put(text.encode(), file, mode=0o644, sudo=True)
    for text in (*verdict.lines, *verdict.notes, f"proven in {report.seconds:.0f} s"):
        sink(Note(text))
    if busy and network:
        which = ", ".join(busy)
        sink(Note(f"programs use the GPUs of {which}: estimates do not use these speeds"))
    return FabricProof(record, fresh=True, notes=verdict.notes)


def require_links(
    scope: GateScope,
    sink: EventSink,
    *,
    unrated: str = IN_USE,
    notes: Callable[[PairResults], Iterator[str]] = judgement.unproven,
) -> None:
    """Test every pair of hosts; raise all problems of their links together. `unrated`: why
    throughput is not measured, if so; `notes`: receives remarks about the results."""
    seen = probe_pairs(
        scope.inventory, scope.topology, scope.facts, scope.transports, unrated=unrated
    )
    for text in notes(seen):
        sink(Note(text))
    raise_all(judgement.problems(seen, ray_ports(scope.inventory)))


def incarnations(scope: GateScope) -> dict[str, str]:
    """Return ID and start time of each host's node container. Raises RequirementsNotMet for hosts
    without a running one."""
    name = container_name(scope.inventory.cluster)

    def one(transport: Transport) -> str:
        found = scope.driver(transport).find(name)
        if found is None or not found.running:
            raise RequirementsNotMet(
                f"{name} is not running, so its fabric cannot be tested",
                hint=f"clusterctl bootstrap {scope.inventory.file}",
            )
        return f"{found.id} {found.started_at}"

    found = fan_out({node.host: scope.transports[node.host] for node in scope.topology.nodes}, one)
    raise_all(failures(found))
    return values(found)


def _run(scope: GateScope, sink: EventSink, cancelled: Cancelled) -> FabricReport:
    """Run the gate's program in the head's container, and send its progress to `sink`."""
    accelerator = accelerator_named(scope.inventory.accelerator)
    spec = FabricSpec(expected_nodes(scope.topology), accelerator.gpu_backend)
    driver = scope.driver(scope.head)
    argv = driver.exec_argv(
        container_name(scope.inventory.cluster), ["python3", package.install_path(), "fabric"]
    )
    host = scope.head.host.name
    with driver.host_open(argv) as channel:
        channel.send(json.dumps(asdict(spec)).encode() + b"\n")
        last, besides = "", deque[str](maxlen=_KEPT_LINES)  # Docker writes some errors to stdout
        try:
            for line in _lines(channel, cancelled):
                if not line.startswith("{"):
                    besides.append(line)
                    continue
                message = json.loads(line)
                if "report" in message:
                    return from_json(FabricReport, json.dumps(message["report"]))
                if "say" in message:
                    last = str(message["say"])
                    sink(Note(last))
        except TimeoutError:
            # Name all hosts: only the program on the head knows which had reported.
            hosts = ", ".join(node.host for node in scope.topology.nodes)
            raise StepFailed(
                f"the fabric gate took longer than {_OVER:.0f} s and reported nothing about "
                f"{hosts}",
                host=host,
                hint=f"clusterctl logs --host {host}, then: clusterctl check "
                f"{scope.inventory.file} --fabric",
                detail=f"last message: {last or 'nothing'}",
            ) from None
        except MALFORMED as error:
            raise StepFailed(
                "the fabric gate's program printed a malformed line",
                host=host,
                hint=f"clusterctl logs --host {host}",
                detail=str(error)[:500],
            ) from error
        said = "\n".join([*besides, *last_words(channel).splitlines()[-_KEPT_LINES:]])
        if "can't open file" in said:
            raise RequirementsNotMet(
                "its container is from a version of clusterctl without a fabric gate",
                host=host,
                hint=f"clusterctl bootstrap {scope.inventory.file}",
            )
        raise StepFailed(
            "the fabric gate ended without a report",
            host=host,
            hint=f"clusterctl logs --host {host}",
            detail=said or None,
        )


def _lines(channel: Channel, cancelled: Cancelled) -> Iterator[str]:
    """Yield the program's output lines. Raises Interrupted, TimeoutError after _OVER seconds, and
    ValueError for a line longer than LONGEST_LINE."""
    deadline = time.monotonic() + _OVER
    channel.settimeout(_LOOK)
    pending = b""
    while True:
        if cancelled.is_set():
            raise Interrupted("stopped on request while the fabric was tested")
        with suppress(TimeoutError):
            chunk = channel.recv(65536)
            if not chunk:
                return
            *complete, pending = (pending + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in complete)
        if len(pending) > LONGEST_LINE:
            raise ValueError(f"it wrote a line longer than {LONGEST_LINE >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
