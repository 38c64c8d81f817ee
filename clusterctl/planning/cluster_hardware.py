"""The hardware of a cluster for a plan: free GPUs, users of the others, links and environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil

from clusterctl.accelerators.protocol import Accelerator
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.select import select, still_known
from clusterctl.network.gate import FabricRecord, read_record, record_file
from clusterctl.node.documents import RayNode, ServiceDocument, ServiceState
from clusterctl.node.rank_placement import placed_on
from clusterctl.planning.hardware import GpuModel, find_gpu, gpu_of_host
from clusterctl.planning.placement import HostGpus, Site, usual_fabric
from clusterctl.planning.report import Hardware
from clusterctl.planning.reported import Learned, measured_file, measured_in
from clusterctl.planning.speed import SOCKET_LATENCY, LinkSpeed
from clusterctl.ray_cluster.topology import Topology
from clusterctl.survey.survey import Survey
from clusterctl.units import MIB


@dataclass(frozen=True)
class HeldGpus:
    """The free GPUs of a cluster, and the services that hold the others."""

    free: Sequence[HostGpus]  # The head first; GPUs of the service to be replaced count as free
    holders: tuple[str, ...] = ()  # A line each


def hardware_of(survey: Survey, held: HeldGpus, vllm: str | None, model: str) -> Hardware:
    """Return the free GPUs as hardware to plan for, with what earlier starts of `model` have taken.
    Raises UsageError for GPUs whose memory is
    unknown."""
    inventory, facts = survey.inventory, survey.facts
    files = survey.answers[inventory.head.name].files
    learned = measured_in(files.get(measured_file(inventory.cluster)), inventory.image, model)
    counts = {host.host: host.free for host in held.free}
    nodes = tuple(node for node in survey.topology.nodes if node.host in counts)
    topology = replace(survey.topology, nodes=nodes)
    proven = read_record(files.get(record_file(inventory.cluster)))
    network = measured_network(proven, topology)
    found = replace(
        hardware_of_unknown_gpus(inventory, held, vllm),
        sites=sites_in(accelerator_named(inventory.accelerator), topology, facts, counts, learned),
        network=network or network_of(topology, facts),
        measured=proven.when if proven and network else "",
    )
    head = driver_for(survey.transports[inventory.head.name])
    return with_image_env(found, head, inventory.image)


def hardware_of_unknown_gpus(inventory: Inventory, held: HeldGpus, vllm: str | None) -> Hardware:
    """Return hardware with only the number of GPUs, for which memory cannot be planned."""
    return Hardware(
        sites=(),
        defaults=accelerator_named(inventory.accelerator).defaults,
        # that of the head's container, where vLLM starts
        env={**inventory.env, **inventory.head.env},
        vllm=vllm or None,
        gpus=tuple(held.free),
        held=held.holders,
    )


def gpus_of(answers: Mapping[str, Probe]) -> tuple[GpuModel, ...]:
    """Return the GPUs of all hosts, in use or not, whose memory is reported or known."""
    return tuple(
        gpu_of_host(gpu.model, (gpu.memory or 0) // MIB)
        for answer in answers.values()
        for gpu in answer.facts.gpus.gpus
        if gpu.memory or find_gpu(gpu.model)
    )


def sites_in(
    accelerator: Accelerator,
    topology: Topology,
    facts: Mapping[str, HostFacts],
    free: Mapping[str, int],
    learned: Learned | None = None,
) -> tuple[Site, ...]:
    """Return the hosts with free GPUs, in the order in which vLLM's Ray executor places ranks: the
    head, then hosts with fewer GPUs first, then by address (`sort_by_driver_then_worker_ip`).

    Raises UsageError for a GPU whose memory is unknown, or that is split by MIG.
    """
    found = []
    for node in sorted(topology.nodes, key=lambda n: (n.role != "head", free[n.host], n.node_ip)):
        devices = accelerator.devices(facts[node.host], free[node.host])
        for gpu in devices:
            if gpu.mig or (gpu.memory is None and find_gpu(gpu.model) is None):
                why = "is split by MIG" if gpu.mig else "does not report its memory"
                raise UsageError(f"{node.host}: {gpu.model} {why}", hint="clusterctl fit --gpus")
        gpus = tuple(gpu_of_host(gpu.model, (gpu.memory or 0) // MIB) for gpu in devices)
        if gpus:
            names = {(node.host, gpu.name) for gpu in gpus}
            known = (learned or {}).get(names.pop(), ()) if len(names) == 1 else ()
            found.append(Site(node.host, gpus, usual_fabric(gpus), known, head=node.role == "head"))
    return tuple(found)


def measurements(cluster: str) -> tuple[str, str]:
    """Return the paths of the files on the head that hold earlier measurements."""
    return measured_file(cluster), record_file(cluster)


def measured_network(proven: FabricRecord | None, topology: Topology) -> LinkSpeed | None:
    """Return the speed that the fabric gate measured between these hosts, or None."""
    hosts = {node.host for node in topology.nodes}
    if proven is None or not proven.network or not hosts <= set(proven.nodes):
        return None
    between = proven.network[0]
    return LinkSpeed(between.bandwidth, between.latency)


def network_of(topology: Topology, facts: Mapping[str, HostFacts]) -> LinkSpeed | None:
    """Return the slowest of the links that carry tensors; None with one host, or if a driver does
    not report a speed, as for virtual NICs.

    The bandwidth is the link's: NCCL over sockets reached 4.0 of 4 GB/s. RDMA is given the latency
    of sockets, since none was measured.
    """
    speeds = []
    for node in topology.nodes:
        nics = [facts[node.host].nic(name) for name in node.nccl_nics]
        known = [nic.speed for nic in nics if nic and nic.speed and nic.kind != "virtual"]
        if len(known) < max(1, len(nics)):
            return None
        speeds.append(sum(known))
    if len(speeds) < 2:
        return None
    return LinkSpeed(min(speeds) * 1e6 / 8, SOCKET_LATENCY)


def with_image_env(hardware: Hardware, head: ContainerDriver, image: str) -> Hardware:
    """On CPUs, take the size of the KV cache from the image if the inventory does not set it, and
    the image can be inspected."""
    name = hardware.defaults.cache_variable
    if not name or name in hardware.env:
        return hardware
    found = None
    with suppress(ClusterctlError):
        found = head.image(image)
    if found is None or name not in found.env:
        return hardware
    return replace(hardware, env={name: found.env[name], **hardware.env})


# States in which a service may hold GPUs without visible ranks: vLLM reserves all GPUs before the
# first rank starts.
_WITH_PROCESS = frozenset({"starting", "loading", "ready", "stalled", "stopping"})


def gpus_held(
    topology: Topology,
    ray: Sequence[RayNode],
    running: Mapping[str, ServiceState],
    declared: Mapping[str, ServiceDocument],
    own: Sequence[ServiceDocument],
) -> HeldGpus:
    """Count GPUs that Ray reports as used, and those that declared services need to start. Pure.

    `own` are the replicas of the service to be replaced. All other declared services keep their
    GPUs, even if they have not started yet.
    """
    nodes = sorted(topology.nodes, key=lambda node: node.role != "head")
    gpus = {node.host: node.gpus for node in nodes}
    used = {node.name: ceil(node.gpus_used) for node in ray if node.alive}
    names = {document.name for document in own}
    others = [document for document in declared.values() if document.name not in names]
    host_at = {node.node_ip: node.host for node in nodes}

    def pinned(document: ServiceDocument) -> list[str]:
        node_ips = document.node_ips or placed_on(document.env)
        return [host_at.get(node_ip, "") for node_ip in node_ips]

    free = {host: max(0, count - used.get(host, 0)) for host, count in gpus.items()}
    with_rank = Counter(rank.host for service in running.values() for rank in service.ranks)
    reserved = {host: max(0, used.get(host, 0) - with_rank[host]) for host in gpus}
    for document in own:
        ranks = running[document.name].ranks if document.name in running else []
        given_back = [rank.host for rank in ranks if rank.host in gpus]
        unseen = _take(reserved, _without_rank(document, running), pinned(document))
        for host in given_back + unseen:
            free[host] = min(gpus[host], free[host] + 1)
    holders = []
    for document in others:
        waiting = _take(reserved, _without_rank(document, running), pinned(document))
        _take(free, _to_come(document, running) - len(waiting), pinned(document))
        service = running.get(document.name)
        hosts = dict.fromkeys(rank.host for rank in service.ranks) if service else {}
        where = f" on {', '.join(hosts)}" if hosts else ""
        condition = service.state if service else "declared"
        count = f"{document.gpus} GPU{'s' * (document.gpus > 1)}"
        holders.append(f"service {document.name} ({condition}) holds {count}{where}")
    return HeldGpus([HostGpus(*each) for each in free.items()], tuple(holders))


def on_of(survey: Survey, service: str) -> str:
    """Return the hosts that an earlier `--on` limits the service to, without those that have left
    the inventory since; empty for all. Raises UsageError if all of them have."""
    known = survey.members.get(service)
    if known is None or not known.on:
        return ""
    left = still_known(_with_dead(survey), known.on)
    if left is None:
        raise UsageError(
            f"{service} is limited to --on {known.on}, and {survey.inventory.file} has none of "
            "these hosts any more",
            hint=f"serve it with `--name {service} --on HOSTS`, or on all with `--on '*'`",
        )
    return left


def _with_dead(survey: Survey) -> Inventory:
    hosts = (*survey.inventory.hosts, *survey.left_out.values())
    return survey.inventory.model_copy(update={"hosts": hosts})


def hosts_on(survey: Survey, on: str) -> tuple[str, ...]:
    """Return the hosts that `--on` selects, without dead ones; all for an empty one. Raises
    UsageError, and RequirementsNotMet if all of them are dead."""
    dead = survey.left_out
    chosen = select(_with_dead(survey), on, "--on") if on else survey.inventory.hosts
    found = tuple(host.name for host in chosen if host.name not in dead)
    if not found:
        raise RequirementsNotMet(f"no host of --on {on} answers", hint="clusterctl status")
    return found


def only_on(held: HeldGpus, hosts: Collection[str], on: str) -> HeldGpus:
    """Return the free GPUs of these hosts, which `--on` selects."""
    free = [each for each in held.free if each.host in hosts]
    if left_out := len(held.free) - len(free):
        noun = f"{left_out} host{'s' * (left_out > 1)}"
        return HeldGpus(free, (*held.holders, f"--on {on} leaves out {noun}"))
    return held


def without_drained(held: HeldGpus, drained: Collection[str]) -> HeldGpus:
    """Return the free GPUs without those of drained hosts."""
    free = [replace(each, free=0) if each.host in drained else each for each in held.free]
    empty = [f"{each.host} is drained" for each in held.free if each.host in drained]
    return HeldGpus(free, (*held.holders, *empty))


def _without_rank(document: ServiceDocument, running: Mapping[str, ServiceState]) -> int:
    """Return how many GPUs Ray may count as used by this service without a visible rank."""
    service = running.get(document.name)
    has_process = service is not None and service.state in _WITH_PROCESS
    return _to_come(document, running) if has_process else 0


def _to_come(document: ServiceDocument, running: Mapping[str, ServiceState]) -> int:
    """Return the number of this service's GPUs without a visible rank."""
    service = running.get(document.name)
    return max(0, document.gpus - (len(service.ranks) if service else 0))


def _take(gpus: dict[str, int], count: int, pinned: Sequence[str]) -> list[str]:
    """Subtract `count` GPUs, or as many as there are: from the hosts `pinned`, if any, else from
    the first hosts that have some, since vLLM places ranks on the head first. Returns the host of
    each."""
    taken: list[str] = []
    for host in pinned or [host for host, number in gpus.items() for _ in range(number)]:
        if len(taken) < count and gpus.get(host, 0) > 0:
            gpus[host] -= 1
            taken.append(host)
    return taken
