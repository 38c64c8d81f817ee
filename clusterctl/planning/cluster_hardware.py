"""What a cluster offers to a plan: free GPUs, links and environment, from what hosts report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.accelerators.protocol import Accelerator
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.driver import ContainerDriver
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.network.gate import FabricRecord, read_record, record_file
from clusterctl.planning.hardware import GpuModel, gpu_of_host
from clusterctl.planning.measured import Learned, measured_file, measured_in
from clusterctl.planning.placement import HostGpus, Site
from clusterctl.planning.planner import Hardware, usual_fabric
from clusterctl.planning.speed import SOCKET_LATENCY, LinkSpeed
from clusterctl.ray_cluster.topology import Node, Topology


def hardware_of(
    inventory: Inventory,
    topology: Topology,
    answers: Mapping[str, Probe],
    free: Sequence[HostGpus],
    vllm: str | None,
    held: tuple[str, ...] = (),
) -> Hardware:
    """The GPUs that a service may have, those of `free`. `held`: who has the others, a line each.

    Raises UsageError for GPUs of which nothing can be said.
    """
    facts = {name: answer.facts for name, answer in answers.items()}
    files = answers[inventory.head.name].files
    learned = measured_in(files.get(measured_file(inventory.cluster)), inventory.image)
    counts = {host.host: host.free for host in free}
    proven = read_record(files.get(record_file(inventory.cluster)))
    return replace(
        hardware_of_unknown_gpus(inventory, free, vllm, held),
        sites=sites_in(accelerator_named(inventory.accelerator), topology, facts, counts, learned),
        network=measured_network(proven, topology) or network_of(topology, facts),
    )


def hardware_of_unknown_gpus(
    inventory: Inventory,
    free: Sequence[HostGpus],
    vllm: str | None,
    held: tuple[str, ...] = (),
) -> Hardware:
    """So many GPUs, of which nothing else is known: no memory can be planned."""
    return Hardware(
        sites=(),
        defaults=accelerator_named(inventory.accelerator).defaults,
        env={**inventory.env, **inventory.head.env},  # of the head's container: vLLM starts there
        vllm=vllm or None,
        gpus=tuple(free),
        held=held,
    )


def smallest_gpu(answers: Mapping[str, Probe]) -> int | None:
    """Bytes of the cluster's smallest GPU, in use or not; None without one."""
    memories = [
        gpu.memory for answer in answers.values() for gpu in answer.facts.gpus.gpus if gpu.memory
    ]
    return min(memories, default=None)


def sites_in(
    accelerator: Accelerator,
    topology: Topology,
    facts: Mapping[str, HostFacts],
    free: Mapping[str, int],
    learned: Learned | None = None,
) -> tuple[Site, ...]:
    """Hosts with free GPUs, in the order that vLLM's Ray executor seats ranks: the head, then
    hosts with fewer GPUs first, then by address (`sort_by_driver_then_worker_ip`).

    A GPU whose memory is not known, or that is split by MIG, raises UsageError: nothing can be
    said of it.
    """
    found = []
    for node in sorted(topology.nodes, key=lambda n: (n.role != "head", free[n.host], n.node_ip)):
        gpus = _gpus(accelerator, node, facts[node.host], free[node.host])
        if gpus:
            names = {(node.host, gpu.name) for gpu in gpus}
            known = (learned or {}).get(names.pop(), ()) if len(names) == 1 else ()
            found.append(Site(node.host, gpus, usual_fabric(gpus), known, head=node.role == "head"))
    return tuple(found)


def _gpus(
    accelerator: Accelerator, node: Node, facts: HostFacts, free: int
) -> tuple[GpuModel, ...]:
    found = accelerator.devices(facts, free)
    for gpu in found:
        if gpu.memory is None or gpu.mig:
            why = "is split by MIG" if gpu.mig else "does not tell its memory"
            raise UsageError(f"{node.host}: {gpu.model} {why}", hint="clusterctl fit --gpus")
    return tuple(gpu_of_host(gpu.model, (gpu.memory or 0) // 2**20) for gpu in found)


def measurements(cluster: str) -> tuple[str, str]:
    """The files on the head that say what was measured there before."""
    return measured_file(cluster), record_file(cluster)


def measured_network(proven: FabricRecord | None, topology: Topology) -> LinkSpeed | None:
    """What the fabric gate measured between these hosts, with everything that slows them."""
    hosts = {node.host for node in topology.nodes}
    if proven is None or not proven.network or not hosts <= set(proven.nodes):
        return None
    between = proven.network[0]
    return LinkSpeed(between.bandwidth, between.latency)


def network_of(topology: Topology, facts: Mapping[str, HostFacts]) -> LinkSpeed | None:
    """The slowest of the links that carry tensors; None where a driver does not tell, as of
    virtual NICs, or where there is only one host.

    Bytes/s are the line's: NCCL over sockets reached 4.0 of 4 GB/s. RDMA counts with the latency
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
    """On CPUs the image may say how large the KV cache is, where the inventory does not."""
    name = hardware.defaults.cache_variable
    if not name or name in hardware.env:
        return hardware
    told = image_environment(head, image)
    return replace(hardware, env={name: told[name], **hardware.env}) if name in told else hardware


def image_environment(head: ContainerDriver, image: str) -> Mapping[str, str]:
    """The variables that the image sets; {} where it cannot be asked."""
    try:
        found = head.image(image)
    except ClusterctlError:
        return {}
    return found.env if found else {}
