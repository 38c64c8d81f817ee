"""Measure a service: find the requested one, and run the benchmark of its kind once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Event

from clusterctl.engine.events import EventSink, Note, StepFinished, StepStarted
from clusterctl.engine.step import Change
from clusterctl.errors import Interrupted, UsageError
from clusterctl.kinds.kind import ModelKind
from clusterctl.kinds.known import kind_named
from clusterctl.kinds.text import TEXT
from clusterctl.node.documents import ServiceDocument
from clusterctl.ray_cluster.topology import base_url, reached_at
from clusterctl.serving.bench import BenchLoad, BenchResult, bench_job, read_figures
from clusterctl.serving.declaration import require_service, served_at
from clusterctl.serving.job import JobOutput, run_job
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey

_LOG_TAIL = 8192  # Bytes of the benchmark's output that are kept for errors


def asked_for(names: Sequence[str], survey: Survey) -> list[ServiceDocument]:
    """Return the services `names`, as clients reach them through the gateway; without names, the
    only one. Raises UsageError."""
    declared = {name: replica.document for name, replica in survey.replicas.items()}
    known = {}
    for name, service in survey.services.items():
        if service.replicas:
            api, first = served_at(survey, name), service.documents[0]
            known[name] = replace(first, name=name, host=api.address, port=api.port)
    if not names and len(known) != 1:
        have = ", ".join(sorted(known)) or "none"
        raise UsageError(f"name the services to measure: {have}", hint="clusterctl status")
    return [require_service(name, {**declared, **known}) for name in names or known]


def replicas_named(name: str, survey: Survey) -> list[Replica]:
    """Return the replicas of a service, or the one replica with that name."""
    every = survey.replicas.values()
    return [replica for replica in every if name in (replica.name, replica.document.service)]


def require_ready(name: str, replicas: Sequence[Replica]) -> ModelKind:
    """Return the kind of the service's model. Raises UsageError if it is not ready."""
    engines = (each for replica in replicas for each in (replica.state, replica.standby))
    ready = [each for each in engines if each and each.state == "ready"]
    if not ready:
        raise UsageError(
            f"{name} is {replicas[0].condition}, and only a ready service can be measured",
            hint="clusterctl status",
        )
    return kind_named(ready[0].kind)


def measure(
    survey: Survey,
    document: ServiceDocument,
    load: BenchLoad,
    key: str,
    cancelled: Event,
    sink: EventSink,
    kind: ModelKind = TEXT,
) -> BenchResult:
    """Run the benchmark once. Raises StepFailed without a result; Interrupted once `cancelled` is
    set."""
    inventory = survey.inventory
    head, state = survey.transports[inventory.head.name], survey.states[inventory.head.name]
    title = f"measure {document.name}: {load}, {load.requests} requests"
    sink(StepStarted(head.host.name, title, Change(title)))
    started, log = time.monotonic(), bytearray()

    def write(data: bytes) -> None:
        log.extend(data)
        del log[:-_LOG_TAIL]

    output = JobOutput(write, write, lambda text: sink(Note(text)))
    url = base_url(reached_at(document.host, "127.0.0.1"), document.port)
    job = bench_job(document, url, key, load, secrets.randbits(31), kind)
    done = run_job(head, inventory.cluster, job, output, cancelled)
    if cancelled.is_set():
        raise Interrupted("interrupted: earlier results are kept on the head")
    said = log.decode(errors="replace")
    figures = read_figures(done.result, said, document.name, state.vllm_version, kind)
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
