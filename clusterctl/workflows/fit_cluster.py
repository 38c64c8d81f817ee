"""What a cluster offers to a plan: GPUs, links and environment from facts; models from hosts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.accelerators.protocol import Accelerator
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.models.config_files import parse_config, read_config
from clusterctl.models.describe import describe
from clusterctl.models.name import resolve as resolve_model
from clusterctl.models.probe import ModelDirectory, look_for
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import parse_version
from clusterctl.node.paths import NodePaths
from clusterctl.planning.exact import Exact
from clusterctl.planning.hardware import Gpu, gpu_of_host
from clusterctl.planning.placement import Site
from clusterctl.planning.request import FitReport, answer, load_shape, usual_fabric
from clusterctl.planning.speed import SOCKET_LATENCY, Link
from clusterctl.ray_cluster.topology import Node, Topology, resolve
from clusterctl.serving.layout import HostGpus
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import fan_out, values
from clusterctl.workflows.fabric_record import FabricRecord, read_record, record_file
from clusterctl.workflows.fit import Asked, Hardware, entry_of, forecast_for
from clusterctl.workflows.fit_probe import ask_images
from clusterctl.workflows.measured import Learned, measured_file, measured_in
from clusterctl.workflows.reach import look_at_all, node_files, reach, read_state


@dataclass(frozen=True)
class Fitted:
    """A report, and where it was asked for what the image's own vLLM says."""

    report: FitReport
    exact: Exact | None = None


def run(inventory: Inventory, asked: Asked, credentials: Credentials) -> Fitted:
    """The report for the inventory's hosts, all their GPUs free.

    Raises UsageError, DoesNotFit, what connections raise, and with `asked.probe` what
    `fit_probe.ask_images` raises.
    """
    request = asked.request()
    with reach(inventory.hosts, credentials) as transports:
        files = (*node_files(inventory.cluster), *measurements(inventory.cluster))
        answers = look_at_all(inventory, transports, files=files)
        hardware = hardware_of(inventory, answers, vllm=asked.vllm)
        if asked.link() is not None:
            hardware = replace(hardware, network=asked.link())
        hardware = with_image_env(hardware, transports[inventory.head.name], inventory.image)
        shape, config = _described(inventory, asked.model, transports)
        forecast = forecast_for(request, shape, entry_of(asked.model), hardware)
        report = answer(forecast.question)
        if not asked.probe:
            return Fitted(report)
        return Fitted(report, ask_images(inventory, transports, forecast.question, report, config))


def hardware_of(
    inventory: Inventory, answers: Mapping[str, Probe], *, vllm: str | None = None
) -> Hardware:
    """All GPUs of the inventory's hosts. Raises UsageError when there are none to plan for, and
    what `topology.resolve` raises."""
    topology = resolve(inventory, {name: answer.facts for name, answer in answers.items()})
    files = answers[inventory.head.name].files
    state = read_state(files.get(str(NodePaths(inventory.cluster).state)))
    version = vllm or (state.vllm_version if state else "") or _tag(inventory.image)
    gpus = [HostGpus(node.host, node.gpus) for node in topology.nodes]
    found = _hardware(inventory, topology, answers, gpus, version)
    if not found.sites:
        raise UsageError(
            "no host shows a GPU to plan for", hint="clusterctl check, or name them: --gpus 2xH200"
        )
    return found


def free_hardware(
    inventory: Inventory,
    topology: Topology,
    answers: Mapping[str, Probe],
    free: Sequence[HostGpus],
    vllm: str,
) -> Hardware:
    """The GPUs that a service may have; without any where nothing can be said of them."""
    try:
        return _hardware(inventory, topology, answers, free, vllm or None)
    except UsageError:
        defaults = accelerator_named(inventory.accelerator).defaults
        return Hardware((), None, defaults, given_env(inventory), vllm or None)


def _hardware(
    inventory: Inventory,
    topology: Topology,
    answers: Mapping[str, Probe],
    free: Sequence[HostGpus],
    vllm: str | None,
) -> Hardware:
    facts = {name: answer.facts for name, answer in answers.items()}
    files = answers[inventory.head.name].files
    data = files.get(measured_file(inventory.cluster))
    counts = {host.host: host.free for host in free}
    learned = measured_in(data, inventory.image)
    accelerator = accelerator_named(inventory.accelerator)
    sites = sites_in(accelerator, topology, facts, counts, learned)
    proven = read_record(files.get(record_file(inventory.cluster)))
    network = measured_network(proven, topology) or network_of(topology, facts)
    return Hardware(sites, network, accelerator.defaults, given_env(inventory), vllm)


def _tag(image: str) -> str | None:
    """The image's name where its tag is a version."""
    return image if parse_version(image) else None


def given_env(inventory: Inventory) -> dict[str, str]:
    """What the inventory sets in the head's container, where vLLM starts."""
    return {**inventory.env, **inventory.head.env}


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


def _gpus(accelerator: Accelerator, node: Node, facts: HostFacts, free: int) -> tuple[Gpu, ...]:
    found = accelerator.devices(facts, free)
    for gpu in found:
        if gpu.memory is None or gpu.mig:
            why = "is split by MIG" if gpu.mig else "does not tell its memory"
            raise UsageError(f"{node.host}: {gpu.model} {why}", hint="clusterctl fit --gpus")
    return tuple(gpu_of_host(gpu.model, (gpu.memory or 0) // 2**20) for gpu in found)


def measurements(cluster: str) -> tuple[str, str]:
    """The files on the head that say what was measured there before."""
    return measured_file(cluster), record_file(cluster)


def measured_network(proven: FabricRecord | None, topology: Topology) -> Link | None:
    """What the fabric gate measured between these hosts, with everything that slows them."""
    hosts = {node.host for node in topology.nodes}
    if proven is None or not proven.network or not hosts <= set(proven.nodes):
        return None
    between = proven.network[0]
    return Link(between.bandwidth, between.latency)


def network_of(topology: Topology, facts: Mapping[str, HostFacts]) -> Link | None:
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
    return Link(min(speeds) * 1e6 / 8, SOCKET_LATENCY)


def with_image_env(hardware: Hardware, head: Transport, image: str) -> Hardware:
    """On CPUs the image may say how large the KV cache is, where the inventory does not."""
    name = hardware.defaults.cache_variable
    if not name or name in hardware.env:
        return hardware
    told = image_environment(head, image)
    return replace(hardware, env={name: told[name], **hardware.env}) if name in told else hardware


def image_environment(head: Transport, image: str) -> dict[str, str]:
    """The variables that the image sets; {} where it cannot be asked."""
    argv = ["docker", "image", "inspect", "--format", "{{json .Config.Env}}", image]
    try:
        result = head.run(argv, sudo=True, timeout=20)
        found = json.loads(result.stdout) if result.ok else None
    except (ClusterctlError, ValueError):
        return {}
    pairs = [str(entry).partition("=") for entry in found or ()]
    return {name: value for name, _, value in pairs}


def _described(
    inventory: Inventory, model: str, transports: Mapping[str, Transport]
) -> tuple[ModelShape, dict[str, Any] | None]:
    """From a path here, else from the models directory of the hosts, else from the catalogue,
    which has no whole config.json."""
    if model.startswith((".", "~")) or Path(model).exists():
        path = Path(model).expanduser()
        return load_shape(path), read_config(path)
    named = resolve_model(model, inventory.models)
    found = values(fan_out(transports, lambda host: look_for(host, named.candidates)))
    text = config_on_hosts(found.values())
    if text is None:
        return load_shape(named.hub_id or model), None
    config = parse_config(text, f"{model}/config.json")
    return describe(config, named.hub_id or named.served_name), config


def config_on_hosts(findings: Iterable[Sequence[ModelDirectory]]) -> str | None:
    """The config.json that most hosts have; None where none has one."""
    configs = Counter(
        directory.config
        for found in findings
        for directory in found[:1]
        if directory.config is not None
    )
    return configs.most_common(1)[0][0] if configs else None
