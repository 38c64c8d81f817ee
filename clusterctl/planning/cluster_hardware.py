"""The hardware of a cluster for a plan: memory of free GPUs, links and environment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from clusterctl.accelerators.protocol import Accelerator
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.facts.candidates import speed_of
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.network.gate import FabricRecord, read_record, record_file
from clusterctl.planning.free_gpus import HeldGpus
from clusterctl.planning.hardware import GpuModel, find_gpu, gpu_of_host
from clusterctl.planning.placement import Site, usual_fabric
from clusterctl.planning.report import Hardware
from clusterctl.planning.reported import Learned, measured_file, measured_in
from clusterctl.planning.speed import SOCKET_LATENCY, LinkSpeed
from clusterctl.ray_cluster.topology import Topology
from clusterctl.survey.survey import Survey
from clusterctl.units import MIB


def hardware_of(survey: Survey, held: HeldGpus, vllm: str | None, model: str) -> Hardware:
    """Return the free GPUs as hardware to plan for, with the overheads of earlier starts of
    `model`. Raises UsageError for GPUs whose memory is unknown."""
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
            found.append(Site(node.host, gpus, usual_fabric(gpus), known))
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

    The bandwidth is the link's: NCCL over sockets reached 4.0 of 4 GB/s. RDMA is assigned the
    latency of sockets, since none was measured.
    """
    speeds = []
    for node in topology.nodes:
        known = [speed_of(facts[node.host], name) or 0 for name in node.nccl_nics]
        if not known or not all(known):
            return None
        speeds.append(sum(known))
    if len(speeds) < 2:
        return None
    return LinkSpeed(min(speeds) * 1e6 / 8, SOCKET_LATENCY)


def with_image_env(hardware: Hardware, head: ContainerDriver, image: str) -> Hardware:
    """On CPUs, take the size of the KV cache from the image if the inventory does not set it and
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
