"""A cluster as `status` shows it: plain data, made from what hosts reported. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.commands.strangers import strangers_of
from clusterctl.errors import ClusterctlError
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.pairs.faults import CARRIES
from clusterctl.node.documents import (
    BrokenNic,
    NodeState,
    RayNode,
    ServiceDocument,
    ServiceState,
    UnreadableDocument,
)
from clusterctl.serving.endpoint import base_url, head_address, reached_at

TAKEN_AWAY = "Unknown Error"
"""NVML's word when a control group keeps the device nodes from it: with the toolkit's classic
mode, `systemctl daemon-reload` does that to running containers (nvidia-docker issue 1730)."""


@dataclass(frozen=True)
class HostReport:
    """What one host said, or why it said nothing."""

    host: Host
    facts: HostFacts | None = None
    state: NodeState | None = None
    container: str = "missing"
    """`running`, `exited`, `missing`, ... as the engine says."""
    drift: tuple[str, ...] = ()
    services: tuple[ServiceDocument, ...] = ()
    """Declared services; on the head only."""
    unreadable: tuple[UnreadableDocument, ...] = ()
    problem: str | None = None
    hint: str | None = None

    @property
    def state_age(self) -> float | None:
        """Seconds since the supervisor last wrote, on the host's own clock."""
        if self.state is None or self.facts is None:
            return None
        return max(0.0, self.facts.clock - self.state.time)


@dataclass(frozen=True)
class HostRow:
    name: str
    role: str
    node_ip: str
    reachable: bool
    engine: str
    container: str
    ray: str
    """`up`, `starting`, `down`, ..., or `dead` where the head's Ray says so."""
    gpus: tuple[str, ...]
    gpus_promised: int
    gpus_in_ray: float
    gpus_used: float
    problems: tuple[str, ...]
    drift: tuple[str, ...]
    hint: str | None


@dataclass(frozen=True)
class ServiceRow:
    document: ServiceDocument
    state: ServiceState | None
    head_address: str
    """Where clients reach the head."""
    failed_ago: float | None = None
    """Seconds since its last failure; None where none is known."""

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def endpoint(self) -> str:
        address = reached_at(self.document.host, self.head_address)
        return f"{base_url(address, self.document.port)}/v1"

    @property
    def condition(self) -> str:
        """The supervisor's word, or `declared` before it took notice."""
        return self.state.state if self.state else "declared"


@dataclass(frozen=True)
class ClusterStatus:
    cluster: str
    hosts: tuple[HostRow, ...]
    services: tuple[ServiceRow, ...]
    ray_version: str
    vllm_version: str
    strangers: tuple[ClusterctlError, ...] = ()
    """Hosts in Ray that are not in the inventory."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is not as promised, a sentence each."""
        of_hosts = [f"{row.name}: {text}" for row in self.hosts for text in row.problems]
        of_services = [
            f"service {row.name}: {row.condition}{_because(row.state)}"
            for row in self.services
            if row.condition != "ready"
        ]
        silent = [
            f"service {row.name}: {row.state.silence}"
            for row in self.services
            if row.state and row.state.silence
        ]
        return (*of_hosts, *map(str, self.strangers), *of_services, *silent)

    @property
    def hints(self) -> tuple[str, ...]:
        """What mends them, each once."""
        hints = [row.hint for row in self.hosts] + [error.hint for error in self.strangers]
        return tuple(sorted({hint for hint in hints if hint}))

    @property
    def healthy(self) -> bool:
        return not self.problems


def _because(state: ServiceState | None) -> str:
    return f" ({state.detail})" if state and state.detail else ""


def assess(
    inventory: Inventory,
    reports: Mapping[str, HostReport],
    weights_apart: Mapping[str, tuple[str, ...]] | None = None,
) -> ClusterStatus:
    """Put the hosts' reports together; the head's Ray has the word on who is in the cluster.

    `weights_apart`: by host, in what its files of a served model differ from the other ranks'.
    """
    apart = weights_apart or {}
    head = reports[inventory.head.name]
    state = head.state if _fresh(head) else None
    in_ray = {node.name: node for node in (state.nodes if state else ()) if node.alive}
    states = {service.name: service for service in (state.services if state else ())}
    return ClusterStatus(
        cluster=inventory.cluster,
        hosts=tuple(
            _host_row(
                reports[host.name],
                in_ray.get(host.name),
                ray_known=state is not None,
                inventory_file=str(inventory.source),
                apart=apart.get(host.name, ()),
            )
            for host in inventory.hosts
        ),
        services=tuple(
            ServiceRow(
                document,
                states.get(document.name),
                _head_address(head, in_ray),
                _failed_ago(head, states.get(document.name)),
            )
            for document in head.services
        ),
        ray_version=state.ray_version if state else "",
        vllm_version=state.vllm_version if state else "",
        strangers=tuple(strangers_of(inventory, state)) if state else (),
    )


def _head_address(head: HostReport, in_ray: Mapping[str, RayNode]) -> str:
    node = in_ray.get(head.host.name)
    node_ip = node.node_ip if node else head.host.node_ip or head.host.address
    return head_address(head.host, head.facts, node_ip) if head.facts else node_ip


def _failed_ago(head: HostReport, state: ServiceState | None) -> float | None:
    """By the head's own clock, which the supervisor noted the failure by."""
    if state is None or not state.last_failure or head.facts is None:
        return None
    return max(0.0, head.facts.clock - state.last_failure_time)


def _fresh(report: HostReport) -> bool:
    return report.state_age is not None and report.state_age < deadlines.STALE


def _fix(inventory_file: str, report: HostReport) -> str | None:
    """What brings back a host that answers and is not as bootstrap left it."""
    gone = report.facts is not None and report.container != "running"
    lost = lost_gpus(report.host, report.state)
    differs = report.drift or report.unreadable
    if gone or lost or differs:
        return f"clusterctl bootstrap {inventory_file}"
    if logs_unwritten(report):
        return f"clusterctl exec --limit {report.host.name} -- df -h /var/log/clusterctl"
    return f"clusterctl check {inventory_file}" if broken_nics(report.state) else None


def _host_row(
    report: HostReport,
    node: RayNode | None,
    *,
    ray_known: bool,
    inventory_file: str,
    apart: tuple[str, ...],
) -> HostRow:
    facts, host = report.facts, report.host
    engine = facts.engine if facts else None
    promised = len(host.gpus)
    found = facts.gpus.gpus if facts else ()
    return HostRow(
        name=host.name,
        role=host.role,
        node_ip=node.node_ip if node else host.node_ip or host.address,
        reachable=report.problem is None,
        engine=f"docker {engine.version}" if engine and engine.running else "",
        container=report.container if facts else "",
        ray=_ray_word(report, node, ray_known=ray_known),
        gpus=tuple(gpu.model for gpu in found),
        gpus_promised=promised,
        gpus_in_ray=node.gpus if node else 0.0,
        gpus_used=node.gpus_used if node else 0.0,
        problems=(*_host_problems(report, node, ray_known=ray_known), *apart),
        drift=report.drift,
        hint=report.hint or _fix(inventory_file, report),
    )


def _ray_word(report: HostReport, node: RayNode | None, *, ray_known: bool) -> str:
    if node is not None:
        return "up"
    if report.state is None or report.container != "running":
        return ""
    if not ray_known:
        return report.state.ray
    return "not joined" if report.state.ray == "up" else report.state.ray


def _host_problems(report: HostReport, node: RayNode | None, *, ray_known: bool) -> tuple[str, ...]:
    """The first cause only, where one thing follows from another; drift and such besides."""
    besides = (
        *logs_unwritten(report),
        *map(unreadable_words, report.unreadable),
        *report.drift,
    )
    return (*_first_cause(report, node, ray_known=ray_known), *besides)


def logs_unwritten(report: HostReport) -> tuple[str, ...]:
    """What is wrong with where logs are, if something is: a full disk stops nothing else."""
    if report.state is None or not _fresh(report) or not report.state.logs_problem:
        return ()
    return (f"{report.state.logs_problem}: logs and journal are not written",)


def unreadable_words(document: UnreadableDocument) -> str:
    follows = "what it held before" if document.last_good else "nothing"
    return f"{document.file} cannot be read ({document.why}); the supervisor follows {follows}"


def _first_cause(report: HostReport, node: RayNode | None, *, ray_known: bool) -> tuple[str, ...]:
    if report.problem is not None or report.facts is None:
        return (report.problem or "no answer",)
    if not report.facts.engine.running:
        return (f"the container engine is not running{_colon(report.facts.engine.error)}",)
    if report.container != "running":
        return (f"the node container is {report.container}",)
    if not _fresh(report):
        return (
            "the supervisor has written no state yet"
            if report.state is None
            else f"the supervisor last wrote {report.state_age:.0f} s ago",
        )
    if broken := broken_nics(report.state):
        return broken
    if ray_known and node is None:
        return ("not in Ray",)
    if node is not None and node.gpus < len(report.host.gpus):
        return (f"Ray has {node.gpus:g} of {len(report.host.gpus)} GPUs",)
    lost = lost_gpus(report.host, report.state)
    return (lost,) if lost else ()


def broken_nics(state: NodeState | None) -> tuple[str, ...]:
    """What is wrong with the NICs that Ray, NCCL and Gloo use there, in words."""
    return tuple(
        f"no interface has the node IP, which carries {_traffic(nic)}"
        if not nic.name
        else f"interface {nic.name}, which carries {_traffic(nic)}, "
        f"{_NIC_PROBLEMS.get(nic.problem, nic.problem)}"
        for nic in (state.broken_nics if state else ())
    )


def _traffic(nic: BrokenNic) -> str:
    """`Gloo and NCCL`."""
    return " and ".join(CARRIES.get(purpose, purpose) for purpose in nic.purposes.split(", "))


_NIC_PROBLEMS = {
    "missing": "is not there: it was renamed or removed",
    "down": "is down: it lost its link, or was switched off",
    "no address": "has no address",
}


def lost_gpus(host: Host, state: NodeState | None) -> str | None:
    """What is wrong, in words, when the supervisor sees fewer GPUs than the host promises."""
    if state is None or not 0 <= state.gpus_visible < len(host.gpus):
        return None
    seen = f"{state.gpus_visible} of {len(host.gpus)}"
    if TAKEN_AWAY in state.gpus_said:
        return f"a daemon-reload took the container's GPUs (NVML: {TAKEN_AWAY}): it sees {seen}"
    return f"the container sees {seen} GPUs{_colon(state.gpus_said)}"


def _colon(text: str | None) -> str:
    return f": {text}" if text else ""
