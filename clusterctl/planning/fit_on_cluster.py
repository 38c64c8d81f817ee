"""Plan on a cluster for `fit`: what `serve` would start on the GPUs that are free now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl import deadlines
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError, raise_all
from clusterctl.models.config_files import read_config
from clusterctl.models.name import Model
from clusterctl.models.name import resolve as resolve_model
from clusterctl.planning.fit_request import (
    FitArguments,
    HubShapes,
    exists,
    load_shape,
)
from clusterctl.planning.image_probe import (
    ProbeAnswer,
    ProbeResult,
    hosts_to_ask,
    probe_question,
    probe_result,
    read_answer,
    script,
)
from clusterctl.planning.question import Question, question
from clusterctl.planning.report import FitReport, Hardware, PlanRequest
from clusterctl.planning.speed import LinkSpeed
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values


def plan_request(
    survey: Survey, asked: FitArguments, hub: HubShapes | None = None
) -> tuple[PlanRequest, dict[str, Any] | None]:
    """Return the request that `serve` would plan, and the model's config.json if one is found: at a
    local path, else in the hosts' models directory; the catalogue and `hub` have the shape
    alone."""
    request = replace(asked.request(), on=asked.on)
    config: dict[str, Any] | None
    here = Path(request.model).expanduser()
    if request.model.startswith((".", "~")) or exists(Path(request.model)):
        model = Model(request.model, here.name, ())
        shape, config = load_shape(here), read_config(here)
        found = question(survey, request, model, vllm=asked.vllm, as_if_free=True)
    else:
        model = resolve_model(request.model, survey.inventory.models)
        found = question(survey, request, model, vllm=asked.vllm, as_if_free=True)
        on_hosts, config = found.shape if found.config else None, found.config_json
        shape = on_hosts or load_shape(model.hub_id or request.model, hub)
    return replace(found, hardware=usable_hardware(found, asked.link())).to_plan(shape), config


def usable_hardware(found: Question, link: LinkSpeed | None = None) -> Hardware:
    """Return the GPUs to plan for, over this link if it is given. Raises UsageError if their memory
    is unknown."""
    if found.unreadable:
        raise found.unreadable
    if not found.hardware.sites:
        raise UsageError(
            "no host reports a GPU to plan for",
            hint="clusterctl check, or name GPUs: --gpus 2xH200",
        )
    return found.hardware if link is None else replace(found.hardware, network=link, measured="")


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
