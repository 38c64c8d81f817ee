"""Plan on a cluster for `fit`: what `serve` would start on the GPUs that are free now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl import deadlines
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError, raise_all
from clusterctl.models.config_files import parse_config, read_config
from clusterctl.models.config_json import describe
from clusterctl.models.name import resolve as resolve_model
from clusterctl.models.probe import ModelDirectory, look_for
from clusterctl.models.version import parse_version
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.cluster_hardware import gpus_of, hardware_of
from clusterctl.planning.fit_request import (
    FitArguments,
    HubShapes,
    exists,
    launch_for,
    load_shape,
)
from clusterctl.planning.free_gpus import HeldGpus, gpus_held, hosts_on, on_of
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
from clusterctl.planning.planner import request_for
from clusterctl.planning.report import FitReport, Hardware, PlanRequest
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.serving.request import ANY_HOST
from clusterctl.serving.service import document_name, served_names
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values


def plan_request(
    survey: Survey, asked: FitArguments, hub: HubShapes | None = None
) -> tuple[PlanRequest, dict[str, Any] | None]:
    """Return the request that `serve` would plan, and the model's config.json if one is found: at a
    local path, else in the hosts' models directory; the catalogue and `hub` have the shape
    alone."""
    request, inventory = asked.request(), survey.inventory
    config, own, directories = None, list[ServiceDocument](), set()
    if request.model.startswith((".", "~")) or exists(Path(request.model)):
        path = Path(request.model).expanduser()
        shape, config = load_shape(path), read_config(path)
    else:
        named = resolve_model(request.model, inventory.models)
        found = values(fan_out(survey.transports, lambda host: look_for(host, named.candidates)))
        text = config_on_hosts(found.values())
        if text is None:
            shape = load_shape(named.hub_id or request.model, hub)
        else:
            config = parse_config(text, f"{request.model}/config.json")
            directories = {directory.path for each in found.values() for directory in each}
            shape = describe(config, named.hub_id or named.served_name)
        # the service that `serve` would replace
        name = document_name(request, served_names(request, named))
        own = survey.service(name).documents
        if asked.on is None:
            asked = replace(asked, on=on_of(survey, name))
    hardware = hardware_for_fit(survey, asked, own, shape.name)
    launch = launch_for(request, shape, hardware, gpus_of(survey.answers))
    same = own[0] if own and directories.intersection(own[0].argv[2:3]) else None
    return request_for(launch, shape, hardware, same), config


def hardware_for_fit(
    survey: Survey, asked: FitArguments, own: Sequence[ServiceDocument], model: str
) -> Hardware:
    """Return the free GPUs for `model`; all GPUs if the cluster is not up yet, or none is free."""
    inventory, topology = survey.inventory, survey.topology
    state = survey.states.get(inventory.head.name)
    held = HeldGpus([HostGpus(node.host, node.gpus) for node in topology.nodes])
    as_if_free = False
    if state:
        now = gpus_held(survey, state.nodes, [document.name for document in own])
        as_if_free = not any(host.free for host in now.free)
        held = replace(held, holders=now.holders) if as_if_free else now
    on = "" if asked.on == ANY_HOST else asked.on or ""
    held = held.without_drained(survey.drained).only_on(hosts_on(survey, on), on)
    tag = inventory.image if parse_version(inventory.image) else None
    version = asked.vllm or (state.vllm_version if state else "") or tag
    hardware = replace(hardware_of(survey, held, version, model), as_if_free=as_if_free)
    if not hardware.sites:
        raise UsageError(
            "no host reports a GPU to plan for",
            hint="clusterctl check, or name GPUs: --gpus 2xH200",
        )
    link = asked.link()
    return hardware if link is None else replace(hardware, network=link, measured="")


def config_on_hosts(findings: Iterable[Sequence[ModelDirectory]]) -> str | None:
    """Return the config.json that most hosts have; None if none has one."""
    configs = Counter(
        directory.config
        for found in findings
        for directory in found[:1]
        if directory.config is not None
    )
    return configs.most_common(1)[0][0] if configs else None


def ask_images(
    survey: Survey, asked: PlanRequest, report: FitReport, config: Mapping[str, Any] | None
) -> ProbeResult:
    """Run the probe in the image's vLLM, on one host for each GPU type.

    Raises UsageError without a config.json, RequirementsNotMet where no node container runs,
    StepFailed where the probe gives no valid answer.
    """
    if config is None:
        raise UsageError(
            "--probe needs the model's config.json, and no host has it",
            hint="give a directory with config.json, or bring the model to the hosts",
        )
    hosts = hosts_to_ask(report.plan)
    question = probe_question(report.plan, config, asked.arguments, asked.hardware.env)
    container = container_name(survey.inventory.cluster)

    def ask(transport: Transport) -> ProbeAnswer:
        driver, host = driver_for(transport), transport.host.name
        there = driver.find(container)
        if there is None or not there.running:
            raise RequirementsNotMet(
                "the node container is not running, and --probe needs its vLLM",
                host=host,
                hint=f"clusterctl bootstrap {survey.inventory.file}",
            )
        argv = ["python3", "-c", script()]
        result = driver.exec(container, argv, stdin=question, timeout=deadlines.ASK_VLLM)
        try:
            return read_answer(result.stdout)
        except ValueError:
            raise StepFailed(
                "asking the image's vLLM failed; the prediction does not depend on it",
                host=host,
                hint="clusterctl fit without --probe",
                detail=result.last_lines(),
            ) from None

    found = fan_out({host: survey.transports[host] for host in hosts.values()}, ask)
    raise_all(failures(found))
    answers = values(found)
    return probe_result(report.plan, {gpu: answers[host] for gpu, host in hosts.items()})
