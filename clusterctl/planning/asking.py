"""Ask the engine in an image what a start would need, if the formulas are not proven for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from clusterctl import deadlines
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError
from clusterctl.local_cache import cache_directory, make_private
from clusterctl.planning.asked_plan import as_asked, question_for
from clusterctl.planning.engine_answer import EngineAnswer, read_answer
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.problems import PredictedProblem, predict_problems
from clusterctl.planning.report import FitReport, PlanRequest
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.survey.survey import Survey

_LONGEST_REFUSAL = 600  # Characters of the engine's sentence


@dataclass(frozen=True)
class ModelFiles:
    """Where the engine finds the small files of a model: the directory on the hosts, or their text
    by name. `config` identifies them."""

    directory: str
    files: Mapping[str, str]
    config: str


def program() -> str:
    """Return the program that the image's Python runs."""
    return resources.files(__package__).joinpath("ask_vllm.py").read_text(encoding="utf-8")


def asked(survey: Survey, request: PlanRequest, report: FitReport, model: ModelFiles) -> FitReport:
    """Return the report with the engine's own figures, or with a note why it could not be asked.
    Asks in the head's node container, which keeps running as it is; no GPU is used."""
    host = survey.inventory.head.name
    try:
        driver = driver_for(survey.transports[host])
        answer = answer_of(driver, survey.inventory.cluster, request, report, model)
    except (ClusterctlError, ValueError) as failed:
        note = f"vLLM in the image on {host} could not be asked: {failed}"
        return replace(report, notes=(*report.notes, note))

    kept = tuple(doubt for doubt in report.doubts if doubt not in report.unproven)
    if answer.refusal is not None:
        text = f"vLLM {answer.vllm} refuses it: {answer.refusal[:_LONGEST_REFUSAL]}"
        problem = PredictedProblem(
            "engine-refusal", fatal=True, text=text, hint="vllm serve --help"
        )
        problems = (problem, *report.problems)
        return replace(report, problems=problems, doubts=kept, unproven=())

    plan = as_asked(report.plan, answer)
    said = f"weights and KV cache are those of vLLM {answer.vllm}, asked in the image on {host}"
    notes = [*report.notes, said]
    if answer.memory_refusal and plan.verdict != "fits":
        notes.append(f"in vLLM's words: {answer.memory_refusal[:_LONGEST_REFUSAL]}")
    problems = predict_problems(request.shape, plan, request.rules, request.arguments)
    return replace(report, plan=_without(plan, report), problems=problems, doubts=kept,
                   unproven=(), notes=tuple(notes))  # fmt: skip


def _without(plan: FitPlan, report: FitReport) -> FitPlan:
    """Remove notes about assumptions that the engine has answered."""
    notes = tuple(note for note in plan.notes if note not in report.unproven)
    return replace(plan, notes=notes)


def answer_of(
    driver: ContainerDriver,
    cluster: str,
    request: PlanRequest,
    report: FitReport,
    model: ModelFiles,
) -> EngineAnswer:
    """Return the answer, from the cache if the same was asked before. Raises ValueError for an
    unreadable answer, and ClusterctlError."""
    container = driver.find(container_name(cluster))
    if container is None or not container.running:
        raise ValueError("the node container does not run")
    question = question_for(report.plan, request, directory=model.directory, files=model.files)
    kept = _kept(container, question, model)
    if kept.exists():
        return read_answer(kept.read_text(encoding="utf-8"))

    text = json.dumps(question).encode()
    result = driver.exec(
        container.name, ["python3", "-c", program()], stdin=text, timeout=deadlines.ASK_VLLM
    )
    try:
        answer = read_answer(result.stdout.strip())
    except ValueError:
        raise ValueError(" ".join(result.last_lines().split())[-300:] or "no answer") from None
    make_private(kept.parent)
    kept.write_text(result.stdout, encoding="utf-8")
    return answer


def _kept(container: Container, question: Mapping[str, object], model: ModelFiles) -> Path:
    """Return the file for an answer: by image, question, config.json and program."""
    parts = (container.image, json.dumps(question, sort_keys=True), model.config, program())
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_directory() / "asked" / f"{name}.json"
