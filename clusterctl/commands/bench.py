"""`bench`: measure services from the head's node container, with vLLM's own benchmark or, where it
has none, with requests of the kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clusterctl.engine.events import Note
from clusterctl.engine.interrupt import interruptible
from clusterctl.node.documents import ServiceDocument
from clusterctl.node.files import NodePaths
from clusterctl.operations.session import Session
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.question import plan_as_served
from clusterctl.planning.reported import keep
from clusterctl.planning.speed import Load, SpeedModel
from clusterctl.serving.bench import (
    BenchLoad,
    BenchResult,
    LastTime,
    comparison,
    read_results,
    with_results,
)
from clusterctl.serving.declaration import read_key
from clusterctl.serving.measuring import asked_for, measure, replicas_named, require_ready
from clusterctl.survey.survey import Survey, take_survey


@dataclass(frozen=True)
class MeasuredLoad:
    """The runs of a load, the planner's estimate, and how they compare with the last time."""

    runs: Sequence[BenchResult]
    predicted: Load | None  # None without an estimate, as on CPUs
    earlier: LastTime | None

    @property
    def result(self) -> BenchResult:
        """The median run, by its speed."""
        ordered = sorted(self.runs, key=lambda run: run.figures.speed)
        return ordered[len(ordered) // 2]

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `bench --json`. `off` is 0.1 if the estimate is 10 % too high."""
        document, figures = asdict(self.result), self.result.figures
        predicted = None
        if self.predicted is not None:
            expected, measured = self.predicted.tokens_per_s, figures.tokens_per_s
            predicted = {
                "tokens_per_s": round(expected, 1),
                "off": round(expected / measured - 1, 3) if measured else 0.0,
                "first_token_ms": round(self.predicted.first_token * 1e3, 1),
                "token_ms": round(self.predicted.token * 1e3, 2),
            }
        earlier = asdict(self.earlier) if self.earlier else None
        runs = [run.figures.tokens_per_s for run in self.runs]
        load = {**document["load"], "text": str(self.result.load)}
        return {
            **document,
            "load": load,
            "predicted": predicted,
            "earlier": earlier,
            "runs_tokens_per_s": runs,
        }


def run(
    session: Session, names: Sequence[str], loads: Sequence[BenchLoad], *, runs: int = 1
) -> list[MeasuredLoad]:
    """Measure each service with each load, `runs` times, one after the other; without `names`, the
    only service. Each result is stored on the head at once.

    Raises UsageError for a service that is unknown or not ready, and for a vLLM without the
    command; StepFailed for a benchmark without a result; Interrupted.
    """
    inventory, sink = session.inventory, session.progress
    file = str(NodePaths(inventory.cluster).logs / "bench.jsonl")
    with session.connected() as transports:
        files = (file, *measurements(inventory.cluster))
        survey = take_survey(inventory, transports, files=files)
        survey.require_supervised_head()
        head = transports[inventory.head.name]
        found = asked_for(names, survey)
        kinds = {
            each.name: require_ready(each.name, replicas_named(each.name, survey)) for each in found
        }
        key, kept, measured = read_key(inventory, head), survey.head_file(file), []

        with interruptible(sink) as cancelled:
            for document in found:
                listed = survey.service(document.name).listed
                if listed and document.port != listed.port:
                    sink(Note(f"no gateway is up: {document.name} is measured at one replica only"))
                kind = kinds[document.name]
                speed = speed_model(survey, document) if kind.unit == "tokens" else None

                for load in loads:
                    earlier, done = read_results(kept), []
                    for _ in range(runs):
                        done.append(measure(survey, document, load, key, cancelled, sink, kind))
                        kept = with_results(kept, done[-1:])
                        keep(head, file, kept)
                    expected = predicted(speed, load)
                    measured.append(MeasuredLoad(done, expected, comparison(done, earlier)))
    return measured


def speed_model(survey: Survey, document: ServiceDocument) -> SpeedModel | None:
    """Return the planner's speed model for a service as it is served; None if it has none, or
    several replicas."""
    if len(survey.service(document.name).replicas) > 1:
        return None
    found = plan_as_served(survey, document)
    if found is None:
        return None
    request, chosen = found
    if any(seat.gpu.is_cpu for seat in chosen.placement.seats):
        return None
    settings = chosen.settings
    return SpeedModel(
        request.shape, chosen.placement, settings.quantization, request.network, chosen.options,
        batched=settings.batch.tokens,
    )  # fmt: skip


def predicted(speed: SpeedModel | None, load: BenchLoad) -> Load | None:
    """Return the estimate; None for an open load, whose speed depends on the users."""
    if speed is None or load.concurrency is None:
        return None
    at_once = min(load.concurrency, load.requests)
    rounds = load.requests / at_once
    wanted = replace(speed, prompt=load.prompt, output=load.output, rounds=rounds)
    return wanted.load(at_once)
