"""A cluster's status for `status`: plain data, built from a survey. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.facts.cluster_requirements import usual_mtu
from clusterctl.facts.gpu_faults import describe_processes, gpus_of_strangers
from clusterctl.facts.requirements import shm_full
from clusterctl.inventory.model import Host
from clusterctl.network.pairs.judgement import CARRIES
from clusterctl.node.documents import (
    CHANGED,
    DELETED,
    BrokenNic,
    GatewayState,
    RayNode,
    UnreadableDocument,
)
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.ray_cluster.topology import base_url, client_address
from clusterctl.survey.drift import log_problems
from clusterctl.survey.gateways import as_one, gateway_url
from clusterctl.survey.services import Replica, partner_of
from clusterctl.survey.survey import Survey


@dataclass(frozen=True)
class GpuLoad:
    """A GPU's current load; None for what nvidia-smi does not report."""

    index: int
    use: float | None  # 0 to 1: the share of the last second in which a kernel ran
    celsius: float | None
    memory_used: int | None  # Bytes
    memory: int | None


@dataclass(frozen=True)
class HostLoad:
    cpus: int
    load: float  # Processes that want a CPU, the mean of a minute
    memory: int  # Bytes
    memory_used: int  # Without what the kernel would give back
    gpus: tuple[GpuLoad, ...] = ()


@dataclass(frozen=True)
class ServiceLoad:
    """What a service did within `seconds`; None: since a start at an unknown time. Latencies in
    seconds; None without requests."""

    seconds: float | None
    requests_per_s: float | None
    failed: float
    aborted: float
    first_token: Mapping[str, float] | None  # By percentile: p50, p95
    request: Mapping[str, float] | None


@dataclass(frozen=True)
class HostRow:
    name: str
    role: str
    node_ip: str
    reachable: bool
    engine: str
    container: str
    ray: str  # `up`, `starting`, `down`, ..., or `not joined` if the head's Ray does not have it
    gpus: tuple[str, ...]
    gpus_expected: int
    gpus_in_ray: float
    gpus_used: float
    problems: tuple[str, ...]
    drift: tuple[str, ...]
    hint: str | None
    versions: Mapping[str, str] = field(default_factory=dict)  # As the ledger names them
    load: HostLoad | None = None  # Only in the wide view
    drained: bool = False  # It gets no replicas


@dataclass(frozen=True)
class ServiceRow(Replica):
    """A replica as shown by the status."""

    service_url: str = ""  # The gateway's; empty without one
    failed_ago: float | None = None  # Seconds since its last failure; None if none is known
    load: ServiceLoad | None = None  # Only in the wide view
    on: str = ""  # The hosts that `serve --on` limits it to; empty: all
    cause: str = ""  # Why it fails, as `diagnose` reads it from its log
    swaps_with: str = ""  # The service that has its GPUs in turn

    @property
    def detail(self) -> str:
        """What its supervisor says, and why it fails."""
        said = self.state.detail if self.state else ""
        return "; ".join(filter(None, (said, self.cause)))

    @property
    def endpoint(self) -> str:
        own = base_url(self.document.host, self.document.port)
        return f"{self.service_url or own}/v1"


RENEW_WITHIN = 30  # Days

_FAILING = frozenset({"failed", "backing-off", "stalled"})  # States of an engine


@dataclass(frozen=True)
class ClusterStatus:
    cluster: str
    hosts: tuple[HostRow, ...]
    services: tuple[ServiceRow, ...]
    ray_version: str
    vllm_version: str
    strangers: tuple[ClusterctlError, ...] = ()  # Hosts in Ray that are not in the inventory
    lost: tuple[str, ...] = ()  # Replicas that no host that answers has, a sentence each
    # With the counts of all hosts; None if nothing is behind it, and none is expected
    gateway: GatewayState | None = None
    other_gateways: Mapping[str, GatewayState] = field(default_factory=dict)  # By worker
    certificate_days: int | None = None  # That the gateway's certificate is valid; None without one

    @property
    def problems(self) -> tuple[str, ...]:
        """Every deviation from the inventory and from working services, one sentence each."""
        of_hosts = [f"{row.name}: {text}" for row in self.hosts for text in row.problems]
        of_services = [
            f"service {row.name}: {row.condition}{f' ({row.detail})' if row.detail else ''}"
            for row in self.services
            if row.condition != "ready"
        ]
        of_services += [
            f"service {row.name}: its standby is {row.standby.state} ({row.standby.detail})"
            for row in self.services
            if row.standby and row.standby.state in _FAILING
        ]
        silent = [
            f"service {row.name}: {row.state.silence}"
            for row in self.services
            if row.state and row.state.silence
        ]
        unwatched = [f"service {name}: {words}" for name, words in self._unwatched.items()]
        lost = [*self.lost]
        if self.gateway and self.gateway.state != "up":
            lost.append(_down(self.gateway))
        if self.gateway:
            lost += [
                f"{host}: no gateway: bootstrap adds one, unless the image has no HAProxy"
                if one.state == "absent"
                else f"{host}: {_down(one)}"
                for host, one in self.other_gateways.items()
                if one.state != "up"
            ]
        if self._renew:
            lost.append(f"gateway: its certificate is valid for {self.certificate_days} more days")
        return (*of_hosts, *map(str, self.strangers), *lost, *of_services, *silent, *unwatched)

    @property
    def hints(self) -> tuple[str, ...]:
        """Fixes, without duplicates."""
        hints = [row.hint for row in self.hosts] + [error.hint for error in self.strangers]
        # The reason for repeated failures is in the engine's log; `logs` explains known ones.
        hints += [
            f"clusterctl logs {row.name}"
            for row in self.services
            if row.condition in _FAILING
            or (not row.serves and row.state and row.state.attempts > 1)
        ]
        hints += [
            f"clusterctl logs {row.standby.name}"
            for row in self.services
            if row.standby and row.standby.state in _FAILING
        ]
        hints += [f"clusterctl restart {name}" for name in self._unwatched]
        if self._renew:
            hints.append("clusterctl bootstrap renews it, or takes over the inventory's new one")
        return tuple(sorted({hint for hint in hints if hint}))

    @property
    def _unwatched(self) -> dict[str, str]:
        """What is said of replicas whose ranks Ray does not list, by name."""
        engines = ((row.name, each) for row in self.services for each in (row.standby, row.state))
        return {name: each.unwatched for name, each in engines if each and each.unwatched}

    @property
    def _renew(self) -> bool:
        return self.certificate_days is not None and self.certificate_days < RENEW_WITHIN

    @property
    def healthy(self) -> bool:
        return not self.problems


def with_loads(
    status: ClusterStatus, hosts: Mapping[str, HostLoad], services: Mapping[str, ServiceLoad]
) -> ClusterStatus:
    """Return the status with the loads for the wide view."""
    return replace(
        status,
        hosts=tuple(replace(row, load=hosts.get(row.name)) for row in status.hosts),
        services=tuple(replace(row, load=services.get(row.name)) for row in status.services),
    )


def with_causes(status: ClusterStatus, causes: Mapping[str, str]) -> ClusterStatus:
    """Return the status with the reasons why services fail, by name."""
    services = tuple(replace(row, cause=causes.get(row.name, "")) for row in status.services)
    return replace(status, services=services)


def _down(gateway: GatewayState) -> str:
    """Return why nothing listens at the gateway's address."""
    if gateway.state == "absent":
        return "gateway: the node image has no HAProxy, so services have no address of their own"
    return f"gateway: {gateway.state}{f' ({gateway.detail})' if gateway.detail else ''}"


def assess(
    survey: Survey,
    drift: Mapping[str, Sequence[str]] | None = None,
) -> ClusterStatus:
    """Build the status from the hosts' answers; the head's Ray decides who is in the cluster.

    drift  by host: differences from the result of a bootstrap
    """
    inventory, head = survey.inventory, survey.inventory.head
    state = survey.fresh_state(head.name)
    gateways = {
        host.name: fresh.gateway
        for host in inventory.gateways
        if (fresh := survey.fresh_state(host.name))
    }
    in_ray = {node.name: node for node in (state.nodes if state else ()) if node.alive}
    head_node = in_ray.get(head.name)
    node_ip = head_node.node_ip if head_node else head.node_ip or head.address
    address = client_address(head, survey.head.facts, node_ip) if survey.head else node_ip
    services = list[ServiceRow]()
    for service in survey.services.values():
        url = ""
        if state and service.listed:
            url = gateway_url(survey, state.gateway, service.listed, node_ip, address)
        services += [_service_row(survey, each, service.on, url) for each in service.replicas]
    odd = odd_mtus(survey)
    has_replicas = any(service.listed for service in survey.services.values())
    return ClusterStatus(
        cluster=inventory.cluster,
        hosts=tuple(
            _host_row(
                survey,
                host,
                in_ray.get(host.name),
                ray_known=state is not None,
                drift=tuple((drift or {}).get(host.name, ())),
                odd=odd.get(host.name),
            )
            for host in inventory.hosts
        ),
        services=tuple(services),
        ray_version=state.ray_version if state else "",
        vllm_version=_vllm_of(survey, state.vllm_version) if state else "",
        strangers=survey.strangers,
        gateway=as_one(tuple(gateways.values())) if state and has_replicas else None,
        other_gateways={host: one for host, one in gateways.items() if host != head.name},
        certificate_days=int(max(0.0, state.gateway.tls_until - state.time) // 86400)
        if state and state.gateway.tls_until
        else None,
        lost=(*_lost_replicas(survey), *_virtual_ip_problems(survey, gateways.values())),
    )


def odd_mtus(survey: Survey) -> dict[str, RequirementsNotMet]:
    """Return, by host, a problem for each NCCL NIC whose MTU differs from most hosts'."""
    try:
        nodes = survey.topology.nodes
    except ClusterctlError:  # A host does not answer, which is reported
        return {}
    nics = {node.host: survey.facts[node.host].nic(node.nccl_nics[0]) for node in nodes}
    found = {host: nic for host, nic in nics.items() if nic and nic.mtu}
    usual = usual_mtu(nic.mtu for nic in found.values())
    return {
        host: RequirementsNotMet(
            f"its MTU on {nic.name} is {nic.mtu}, but {usual} on the others: larger packets are "
            "lost",
            hint=f"on {host}: sudo ip link set {nic.name} mtu {usual}",
        )
        for host, nic in found.items()
        if usual and nic.mtu != usual
    }


def _vllm_of(survey: Survey, head: str) -> str:
    """Return vLLM's release on the head, and different ones with their hosts, as while a new image
    is tried."""
    others = [
        f"{state.vllm_version} on {name}"
        for name in survey.answers
        if (state := survey.fresh_state(name)) and state.vllm_version not in ("", head)
    ]
    return ", ".join([head, *others])


def _virtual_ip_problems(survey: Survey, gateways: Iterable[GatewayState]) -> Iterator[str]:
    """Yield the problems of the gateways' shared address."""
    shared, holders = survey.inventory.gateway.virtual_ip, survey.virtual_ip_at
    if shared is None or not any(gateway.state == "up" for gateway in gateways):
        return
    if not holders:
        yield (
            f"gateway: no host has {shared}; its log: clusterctl exec -- journalctl -n 20 -u "
            f"clusterctl-address-{survey.inventory.cluster}"
        )
    if len(holders) > 1:
        yield (
            f"gateway: {' and '.join(holders)} have {shared} at once: VRRP (IP protocol 112) does "
            "not pass between them"
        )


def secrets_apart(survey: Survey, host: str) -> list[str]:
    """Return a sentence for each of the host's secrets that cannot be used or differs from the
    head's, and for each of its replicas that was started with a different key."""
    own, head = survey.fresh_state(host), survey.fresh_state(survey.inventory.head.name)
    if own is None or head is None:
        return []
    found = [
        f"its {name} differs from the head's"
        for name, mark in own.secrets.items()
        if mark != head.secrets.get(name, mark)
    ]
    key = head.secrets.get("api.key", "")
    older = [service.name for service in own.services if key and service.key not in ("", key)]
    found += [
        f"{name} was started with a different api.key than the head's; to use the head's: "
        f"clusterctl restart {name}"
        for name in older
    ]
    return [*own.secret_problems, *found]


def _service_row(survey: Survey, replica: Replica, on: str, url: str) -> ServiceRow:
    state, ago = replica.state, None
    if state and state.last_failure:
        # By the clock of its host, with which the supervisor recorded it
        ago = max(0.0, survey.facts[replica.host].clock - state.last_failure_time)
    partner = None
    if replica.swaps:  # Few do, and each looks at all
        partner = partner_of(replica.document.service, survey.replicas.values())
    return ServiceRow(
        replica.document,
        replica.host,
        state,
        replica.member,
        replica.standby,
        service_url=url,
        failed_ago=ago,
        on=on,
        swaps_with=partner.document.service if partner else replica.document.swap_with,
    )


def _lost_replicas(survey: Survey) -> Iterator[str]:
    """Yield a sentence for each member without a document, and each replica without a member."""
    for name, service in survey.services.items():
        for member in service.undeclared:
            which = f"service {name}: replica {member.replica}"
            if member.host in survey.answers:
                yield f"{which} is not declared on {member.host}"
            else:
                yield f"{which} is on {member.host}, which does not answer"

    for name, service in survey.services.items():
        listed = service.listed
        if listed is None:
            yield (
                f"service {name}: not behind the gateway: an older version declared it, or the "
                "list of its replicas is lost; serve it again with the same flags"
            )
        elif len(listed.members) < listed.asked:
            yield (
                f"service {name}: {len(listed.members)} of the {listed.asked} replicas that were "
                "asked for: the others did not start, and serve starts them again"
            )

    for name, service in survey.services.items():
        for replica in service.replicas:
            if service.listed and replica.member is None:
                yield (
                    f"service {name}: {replica.name} on {replica.host} gets no requests: it was "
                    "replaced while its host was dead, and the next serve or apply ends it"
                )


def _host_row(
    survey: Survey,
    host: Host,
    node: RayNode | None,
    *,
    ray_known: bool,
    drift: tuple[str, ...],
    odd: RequirementsNotMet | None,
) -> HostRow:
    """Build a host's row, with every independent problem, such as drift, but only the first cause
    of problems that follow from each other."""
    facts, state = survey.facts.get(host.name), survey.states.get(host.name)
    container = survey.containers.get(host.name)
    error = survey.errors.get(host.name)
    unreadable = survey.unreadable.get(host.name, ())
    secrets = secrets_apart(survey, host.name)
    logs = next((error for error in log_problems(survey) if error.host == host.name), None)
    renamed = container and container.name != container_name(survey.inventory.cluster)

    problems = list(_first_cause(survey, host, node, ray_known=ray_known))
    taken = gpus_of_strangers(facts.gpus) if facts else {}
    problems += [
        f"GPU {index} is held by {describe_processes(processes)}"
        for index, processes in taken.items()
    ]
    full = shm_full(facts) if facts else None
    problems += [one.summary for one in (logs, full, odd) if one]
    if state and host.name in survey.running:
        problems += state.lasting
    if container and renamed:
        problems.append(f"the node container was renamed to {container.name}")
    problems += [*map(_unreadable, unreadable), *secrets]

    fix = error.hint if error else None
    if facts and fix is None:
        gone = host.name not in survey.running or bool(secrets)
        if gone or renamed or survey.gpus_lost(host.name) or drift or unreadable:
            fix = f"clusterctl bootstrap {survey.inventory.file}"
        elif first := logs or full or odd:
            fix = first.hint
        elif state and state.broken_nics:
            fix = f"clusterctl check {survey.inventory.file}"
        elif state and state.lasting:
            fix = "clusterctl diagnose"

    ray = "up" if node else ""
    if node is None and state and host.name in survey.running:
        ray = "not joined" if ray_known and state.ray == "up" else state.ray
    return HostRow(
        name=host.name,
        role=host.role,
        node_ip=node.node_ip if node else host.node_ip or host.address,
        reachable=error is None,
        engine=f"docker {facts.engine.version}" if facts and facts.engine.running else "",
        container=_container(survey, host.name),
        ray=ray,
        gpus=tuple(gpu.model for gpu in facts.gpus.gpus) if facts else (),
        gpus_expected=len(host.gpus),
        gpus_in_ray=node.gpus if node else 0.0,
        gpus_used=node.gpus_used if node else 0.0,
        problems=(*problems, *drift),
        drift=drift,
        hint=fix,
        versions=state.versions if state else {},
        drained=host.name in survey.drained,
    )


def _unreadable(document: UnreadableDocument) -> str:
    """Describe a document of a host that its supervisor does not follow as written."""
    if document.why == CHANGED:
        return f"{document.file} is not what a command wrote, but is in effect"
    followed = "the previous one" if document.last_good else "nothing"
    if document.why == DELETED:
        return f"{document.file} was deleted; the supervisor follows {followed}"
    return f"{document.file} cannot be read ({document.why}); the supervisor follows {followed}"


def _container(survey: Survey, host: str) -> str:
    """Return the state of the host's node container; "" if unknown."""
    answer, found = survey.answers.get(host), survey.containers.get(host)
    if host in survey.running:
        return "running"
    if found:
        return found.state
    return "missing" if answer and answer.listed else ""


def _first_cause(
    survey: Survey, host: Host, node: RayNode | None, *, ray_known: bool
) -> tuple[str, ...]:
    name = host.name
    if name not in survey.facts:
        error = survey.errors.get(name)
        return (error.summary if error else "no answer",)
    engine = survey.facts[name].engine
    if not engine.running:
        said = f": {engine.error}" if engine.error else ""
        return (f"the container engine is not running{said}",)
    if name not in survey.running and not survey.answers[name].listed:
        return (f"its engine does not list its containers, and {survey.why_silent(name)}",)
    if name not in survey.running:
        return (f"the node container is {_container(survey, name)}",)
    state = survey.fresh_state(name)
    if state is None:
        return (survey.why_silent(name),)
    if state.broken_nics:
        return tuple(map(_broken_nic, state.broken_nics))
    if ray_known and node is None:
        own = (
            f" ({state.ray}: {state.ray_detail})" if state.ray != "up" and state.ray_detail else ""
        )
        return (f"not in Ray{own}",)
    if node is not None and node.gpus < len(host.gpus):
        return (f"Ray has {node.gpus:g} of {len(host.gpus)} GPUs",)
    lost = survey.gpus_lost(name)
    return (lost,) if lost else ()


_NIC_PROBLEMS = {
    "missing": "does not exist: it was renamed or removed",
    "down": "is down: it lost its link, or was turned off",
    "no address": "has no address",
}


def _broken_nic(nic: BrokenNic) -> str:
    """Describe the problem of a NIC that Ray, NCCL or Gloo uses."""
    traffic = " and ".join(CARRIES.get(purpose, purpose) for purpose in nic.purposes.split(", "))
    if not nic.name:
        return f"no interface has the node IP, which carries {traffic}"
    problem = _NIC_PROBLEMS.get(nic.problem, nic.problem)
    return f"interface {nic.name}, which carries {traffic}, {problem}"


def ray_lines(nodes: Sequence[RayNode], head: str, device: str = "GPU") -> list[str]:
    """Return what Ray's head says about its nodes, and the command that shows more. `device`: what
    Ray's GPUs are on these hosts."""
    rows = []
    alive = {node.name for node in nodes if node.alive}
    for node in nodes:
        if not node.alive and node.name in alive:
            continue  # The one that it was before it came back
        used = f"{node.gpus_used:g} of {node.gpus:g} {device}s in use"
        rows.append(f"{node.name} {node.node_ip}: {used if node.alive else 'dead'}")
    return [*rows, f"in Ray's own words: {ray_status(head)}"] if rows else []


def ray_status(head: str) -> str:
    """Return the command that prints `ray status`, which is the same on every node."""
    return f"clusterctl exec --limit {head} --node -- ray status"
