"""`fit` on a cluster: whether a model fits, on which free GPUs, and for how many requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.inventory.model import Inventory
from clusterctl.models.name import Model, resolve
from clusterctl.planning.asking import ModelFiles
from clusterctl.planning.asking import asked as ask_engine
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.fit_request import (
    FitArguments,
    HubShapes,
    exists,
    load_shape,
    with_edition_note,
    with_standby_note,
)
from clusterctl.planning.planner import plan
from clusterctl.planning.question import Question, question
from clusterctl.planning.report import FitReport, Hardware, PlanRequest
from clusterctl.planning.speed import LinkSpeed
from clusterctl.survey.survey import Survey, connected, take_survey
from clusterctl.transport.credentials import Credentials

_SMALL = 4 << 20  # Bytes; the list of tensors of a large checkpoint is longer


def run(
    inventory: Inventory, asked: FitArguments, credentials: Credentials, hub: HubShapes
) -> FitReport:
    """Return the report for the inventory's hosts, with figures from the image's own vLLM if the
    formulas are not proven, or with `asked.ask`. `hub` is queried for a model that neither a host
    nor the catalogue has. Raises UsageError, DoesNotFit, connection errors, what `hub` raises."""
    asked.request()  # refuse a bad request before contacting any host
    with connected(inventory.hosts, credentials) as transports:
        files = measurements(inventory.cluster)
        return fit_on(take_survey(inventory, transports, files=files), asked, hub)


def fit_on(survey: Survey, asked: FitArguments, hub: HubShapes | None = None) -> FitReport:
    """Plan like `run`, without the hosts that `serve` would also leave out."""
    survey = survey.without_dead().require_answers()
    request, files = plan_request(survey, asked, hub)
    report = with_edition_note(plan(request), asked.request().model, request.hardware)
    report = with_standby_note(report, asked)
    if files and (report.unproven or asked.ask):
        report = ask_engine(survey, request, report, files)
    return report


def plan_request(
    survey: Survey, asked: FitArguments, hub: HubShapes | None = None
) -> tuple[PlanRequest, ModelFiles | None]:
    """Return the request that `serve` would plan, and the model's small files if they are found: at
    a local path, else in the hosts' models directory; the catalogue and `hub` have only the shape.
    """
    request = replace(asked.request(), on=asked.on)
    here = Path(request.model).expanduser()
    files: ModelFiles | None
    if request.model.startswith((".", "~")) or exists(Path(request.model)):
        model = Model(request.model, here.name, ())
        shape, files = load_shape(here), _local_files(here)
        found = question(survey, request, model, vllm=asked.vllm, as_if_free=True)
    else:
        model = resolve(request.model, survey.inventory.models)
        found = question(survey, request, model, vllm=asked.vllm, as_if_free=True)
        on_hosts, files = found.shape if found.config else None, found.model_files
        shape = on_hosts or load_shape(model.hub_id or request.model, hub)
    return replace(found, hardware=usable_hardware(found, asked.link())).to_plan(shape), files


def usable_hardware(found: Question, link: LinkSpeed | None = None) -> Hardware:
    """Return the GPUs to plan for, over this link if given. Raises UsageError if their memory is
    unknown."""
    if found.unreadable:
        raise found.unreadable
    if not found.hardware.sites:
        raise UsageError(
            "no host reports a GPU to plan for",
            hint="clusterctl check, or name GPUs: --gpus 2xH200",
        )
    return found.hardware if link is None else replace(found.hardware, network=link, measured="")


def _local_files(path: Path) -> ModelFiles:
    """Read the small files of a local directory, or only a config.json."""
    found = sorted(path.glob("*.json")) if path.is_dir() else [path]
    small = [file for file in found if file.stat().st_size < _SMALL]
    files = {file.name: file.read_text(encoding="utf-8") for file in small}
    return ModelFiles("", files, json.dumps(files))
