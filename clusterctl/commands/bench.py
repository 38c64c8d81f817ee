"""`bench`: measure services with vLLM's own benchmark, from the head's node container."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import Any

from clusterctl.engine.events import EventSink, Note, StepFinished, StepStarted
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.step import Change
from clusterctl.errors import Interrupted, UsageError
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import ServiceDocument, ServiceState
from clusterctl.node.endpoint import COMPLETIONS
from clusterctl.node.files import NodePaths
from clusterctl.planning.as_served import plan_as_served
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.reported import keep
from clusterctl.planning.speed import Load, SpeedModel
from clusterctl.ray_cluster.topology import base_url, reached_at
from clusterctl.serving.bench import (
    BenchLoad,
    BenchResult,
    LastTime,
    bench_job,
    comparison,
    read_figures,
    read_results,
    with_results,
)
from clusterctl.serving.declaration import read_key, require_service, served_at
from clusterctl.serving.job import JobOutput, run_job
from clusterctl.survey.survey import Survey, connected, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials

_LOG_TAIL = 8192  # Bytes of the benchmark's output that are kept for errors


@dataclass(frozen=True)
class MeasuredLoad:
    """The runs of a load, its estimate by the planner, and how they compare with the last time."""

    runs: Sequence[BenchResult]
    predicted: Load | None  # None without an estimate, as on CPUs
    earlier: LastTime | None

    @property
    def result(self) -> BenchResult:
        """The run in the middle, by its tokens/s."""
        ordered = sorted(self.runs, key=lambda run: run.figures.tokens_per_s)
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
    inventory: Inventory,
    names: Sequence[str],
    loads: Sequence[BenchLoad],
    credentials: Credentials,
    sink: EventSink,
    *,
    runs: int = 1,
) -> list[MeasuredLoad]:
    """Measure each service with each load, `runs` times, one after the other; without `names`, the
    only service.
    Results are kept on the head as soon as they are there.

    Raises UsageError for a service that is unknown, not ready, or generates no text, and for a vLLM
    without the command; StepFailed for a benchmark without result; Interrupted.
    """
    file = str(NodePaths(inventory.cluster).logs / "bench.jsonl")
    with connected(inventory.hosts, credentials) as transports:
        files = (file, *measurements(inventory.cluster))
        survey = take_survey(inventory, transports, files=files)
        survey.require_supervised_head()
        head = transports[inventory.head.name]
        found = asked_for(names, survey)
        for document in found:
            require_ready(document.name, states_of(document.name, survey))
        key, kept, measured = read_key(inventory, head), survey.head_file(file), []
        with interruptible(sink) as cancelled:
            for document in found:
                members = survey.members.get(document.name)
                if members and document.port != members.port:
                    sink(Note(f"no gateway is up: {document.name} is measured at one replica"))
                speed = speed_model(survey, document)
                for load in loads:
                    earlier, done = read_results(kept), []
                    for _ in range(runs):
                        done.append(_measure(survey, head, document, load, key, cancelled, sink))
                        kept = with_results(kept, done[-1:])
                        keep(head, file, kept)
                    expected = _predicted(speed, load)
                    measured.append(MeasuredLoad(done, expected, comparison(done, earlier)))
    return measured


def asked_for(names: Sequence[str], survey: Survey) -> list[ServiceDocument]:
    """Return the services `names`; without any, the only one. One with replicas is measured as its
    clients reach it, through the gateway. Raises UsageError."""
    known = {one.name: one for one in survey.services.values() if one.name == one.service}
    for service in survey.members:
        if replicas := survey.replicas(service):
            api = served_at(survey, service)
            known[service] = replace(replicas[0], name=service, host=api.address, port=api.port)
    if not names and len(known) != 1:
        have = ", ".join(sorted(known)) or "none"
        raise UsageError(f"name the services to measure: {have}", hint="clusterctl bench NAME")
    return [require_service(name, {**survey.services, **known}) for name in names or known]


def states_of(name: str, survey: Survey) -> list[ServiceState]:
    """Return what supervisors report of a service, or of each of its replicas."""
    names = [one.name for one in survey.replicas(name)] or [name]
    return [survey.reported[each] for each in names if each in survey.reported]


def require_ready(name: str, states: Sequence[ServiceState]) -> None:
    """Raise UsageError if the service is not ready, or generates no text."""
    ready = [state for state in states if state.state == "ready"]
    if not ready:
        condition = states[0].state if states else "declared"
        raise UsageError(
            f"{name} is {condition}, and only a ready service can be measured",
            hint="clusterctl status",
        )
    if ready[0].task not in ("", COMPLETIONS.name):
        raise UsageError(f"{name} serves {ready[0].task}, and bench measures generated tokens")


def speed_model(survey: Survey, document: ServiceDocument) -> SpeedModel | None:
    """Return the planner's speed model of a service as it is served; None if it has none, or
    replicas."""
    if document.name in survey.members:
        return None
    found = plan_as_served(survey, document)
    if found is None:
        return None
    request, chosen = found
    if any(seat.gpu.is_cpu for seat in chosen.placement.seats):
        return None
    quantization = chosen.settings.quantization
    return SpeedModel(
        request.shape, chosen.placement, quantization, request.network, chosen.options
    )


def _predicted(speed: SpeedModel | None, load: BenchLoad) -> Load | None:
    """Return the estimate; None for an open load, whose speed the users set."""
    if speed is None or load.concurrency is None:
        return None
    return replace(speed, prompt=load.prompt, output=load.output).load(load.concurrency)


def _measure(
    survey: Survey,
    head: Transport,
    document: ServiceDocument,
    load: BenchLoad,
    key: str,
    cancelled: Event,
    sink: EventSink,
) -> BenchResult:
    inventory, state = survey.inventory, survey.states[head.host.name]
    title = f"measure {document.name}: {load}, {load.requests} requests"
    sink(StepStarted(head.host.name, title, Change(title)))
    started, log = time.monotonic(), bytearray()

    def write(data: bytes) -> None:
        log.extend(data)
        del log[:-_LOG_TAIL]

    output = JobOutput(write, write, lambda text: sink(Note(text)))
    url = base_url(reached_at(document.host, "127.0.0.1"), document.port)
    job = bench_job(document, url, key, load)
    done = run_job(head, inventory.cluster, job, output, cancelled)
    if cancelled.is_set():
        raise Interrupted("interrupted: earlier results are kept on the head")
    said = log.decode(errors="replace")
    figures = read_figures(done.result, said, document.name, state.vllm_version)
    sink(StepFinished(head.host.name, title, "changed", time.monotonic() - started))
    return BenchResult(
        time=time.time(),
        service=document.name,
        model=document.model,
        versions={
            "vllm": state.vllm_version,
            "ray": state.ray_version,
            "image": inventory.image,
        },
        fingerprint=document.fingerprint,
        tensor_parallel=document.tensor_parallel,
        pipeline_parallel=document.pipeline_parallel,
        load=load,
        figures=figures,
    )
