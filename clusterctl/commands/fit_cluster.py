"""`fit` on a cluster: the plan of what `serve` would start on the GPUs that are free now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from clusterctl import deadlines
from clusterctl.commands.declared import services_in
from clusterctl.commands.fit import FitArguments, launch_for, load_shape
from clusterctl.commands.reach import look_at_all, node_files, reach, read_state
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError, raise_all
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.models.config_files import parse_config, read_config
from clusterctl.models.config_json import describe
from clusterctl.models.name import resolve as resolve_model
from clusterctl.models.probe import ModelDirectory, look_for
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import parse_version
from clusterctl.network.choice import resolve
from clusterctl.node.documents import ServiceDocument
from clusterctl.node.paths import NodePaths
from clusterctl.planning.cluster_hardware import (
    hardware_of,
    measurements,
    smallest_gpu,
    with_image_env,
)
from clusterctl.planning.gpu_holders import gpus_held
from clusterctl.planning.image_probe import (
    ProbeAnswer,
    ProbeResult,
    hosts_to_ask,
    probe_question,
    probe_result,
    read_answer,
    script,
)
from clusterctl.planning.placement import HostGpus
from clusterctl.planning.planner import (
    FitReport,
    Hardware,
    PlanRequest,
    plan,
    request_for,
    served_layout,
)
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.serving.service import document_name, served_names
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass(frozen=True)
class Fitted:
    """A report, and where it was asked for what the image's own vLLM says."""

    report: FitReport
    probed: ProbeResult | None = None


@dataclass(frozen=True)
class _Model:
    """What is known of the model. `config`: the whole config.json, which the catalogue lacks."""

    shape: ModelShape
    config: dict[str, Any] | None = None
    directories: tuple[str, ...] = ()  # Where the hosts have it


def run(inventory: Inventory, asked: FitArguments, credentials: Credentials) -> Fitted:
    """The report for the inventory's hosts. Raises UsageError, DoesNotFit, what connections raise,
    and with `asked.probe` what `ask_images` raises."""
    asked.request()  # what is wrong with it needs no host to tell
    with reach(inventory.hosts, credentials) as transports:
        files = (*node_files(inventory.cluster), *measurements(inventory.cluster))
        answers = look_at_all(inventory, transports, files=files)
        request, config = plan_request(inventory, asked, transports, answers)
        report = plan(request)
        if not asked.probe:
            return Fitted(report)
        return Fitted(report, ask_images(inventory, transports, request, report, config))


def plan_request(
    inventory: Inventory,
    asked: FitArguments,
    transports: Mapping[str, Transport],
    answers: Mapping[str, Probe],
) -> tuple[PlanRequest, dict[str, Any] | None]:
    """The plan that `serve` would ask for, and the model's config.json where somebody has it."""
    request = asked.request()
    model = _described(inventory, asked.model, transports)
    own = _own(inventory, asked, answers[inventory.head.name])
    hardware = hardware_for_fit(inventory, asked, transports, answers, own)
    launch = launch_for(request, model.shape, hardware, smallest_gpu(answers))
    same = own if own and own.argv[2] in model.directories else None
    return request_for(launch, model.shape, hardware, served_layout(same)), model.config


def _own(inventory: Inventory, asked: FitArguments, head: Probe) -> ServiceDocument | None:
    """The service that `serve` would replace."""
    if _is_local(asked.model):
        return None
    request, model = asked.request(), resolve_model(asked.model, inventory.models)
    name = document_name(request, served_names(request, model))
    return services_in(inventory.cluster, head).get(name)


def hardware_for_fit(
    inventory: Inventory,
    asked: FitArguments,
    transports: Mapping[str, Transport],
    answers: Mapping[str, Probe],
    own: ServiceDocument | None,
) -> Hardware:
    """The GPUs that are free; all of them before a cluster is up, and where none is free."""
    topology = resolve(inventory, {name: answer.facts for name, answer in answers.items()})
    head = answers[inventory.head.name]
    state = read_state(head.files.get(str(NodePaths(inventory.cluster).state)))
    free: Sequence[HostGpus] = [HostGpus(node.host, node.gpus) for node in topology.nodes]
    holders: tuple[str, ...] = ()
    as_if_free = False
    if state:
        held = gpus_held(topology, state, services_in(inventory.cluster, head), own)
        holders = held.holders
        as_if_free = not any(host.free for host in held.free)
        free = free if as_if_free else held.free
    version = asked.vllm or (state.vllm_version if state else "") or _tag(inventory.image)
    hardware = hardware_of(inventory, topology, answers, free, version, holders)
    hardware = replace(hardware, as_if_free=as_if_free)
    if not hardware.sites:
        raise UsageError(
            "no host shows a GPU to plan for", hint="clusterctl check, or name them: --gpus 2xH200"
        )
    if asked.link() is not None:
        hardware = replace(hardware, network=asked.link())
    return with_image_env(hardware, driver_for(transports[inventory.head.name]), inventory.image)


def _tag(image: str) -> str | None:
    """The image's name where its tag is a version."""
    return image if parse_version(image) else None


def _is_local(model: str) -> bool:
    return model.startswith((".", "~")) or Path(model).exists()


def _described(inventory: Inventory, model: str, transports: Mapping[str, Transport]) -> _Model:
    """From a path here, else from the models directory of the hosts, else from the catalogue,
    which has no whole config.json."""
    if _is_local(model):
        path = Path(model).expanduser()
        return _Model(load_shape(path), read_config(path))
    named = resolve_model(model, inventory.models)
    found = values(fan_out(transports, lambda host: look_for(host, named.candidates)))
    text = config_on_hosts(found.values())
    if text is None:
        return _Model(load_shape(named.hub_id or model))
    config = parse_config(text, f"{model}/config.json")
    directories = {directory.path for each in found.values() for directory in each}
    shape = describe(config, named.hub_id or named.served_name)
    return _Model(shape, config, tuple(directories))


def config_on_hosts(findings: Iterable[Sequence[ModelDirectory]]) -> str | None:
    """The config.json that most hosts have; None where none has one."""
    configs = Counter(
        directory.config
        for found in findings
        for directory in found[:1]
        if directory.config is not None
    )
    return configs.most_common(1)[0][0] if configs else None


def ask_images(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    asked: PlanRequest,
    report: FitReport,
    config: Mapping[str, Any] | None,
) -> ProbeResult:
    """One host of each GPU type is asked. Raises UsageError without a config.json,
    RequirementsNotMet where no node container runs, StepFailed where vLLM does not answer."""
    if config is None:
        raise UsageError(
            "--probe needs the model's config.json, and no host has it",
            hint="give a directory with config.json, or bring the model to the hosts",
        )
    hosts = hosts_to_ask(report.plan)
    text = probe_question(report.plan, config, asked.arguments, asked.hardware.env)
    chosen = {host: transports[host] for host in hosts.values()}
    found = fan_out(chosen, partial(_ask, inventory, text))
    raise_all(failures(found))
    answers = values(found)
    return probe_result(report.plan, {gpu: answers[host] for gpu, host in hosts.items()})


def _ask(inventory: Inventory, text: bytes, transport: Transport) -> ProbeAnswer:
    driver, host = driver_for(transport), transport.host.name
    container = container_name(inventory.cluster)
    there = driver.find(container)
    if there is None or not there.running:
        raise RequirementsNotMet(
            "the node container does not run, and --probe asks the vLLM in it",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
    argv = ["python3", "-c", script()]
    result = driver.exec(container, argv, stdin=text, timeout=deadlines.ASK_VLLM)
    try:
        return read_answer(result.stdout)
    except ValueError:
        raise StepFailed(
            "the image's vLLM could not be asked; what was predicted stands",
            host=host,
            hint="clusterctl fit without --probe",
            detail=result.last_lines(),
        ) from None
