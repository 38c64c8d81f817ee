"""`soak`: steady load, the fabric gate and a survey of all hosts, in turn. Changes no service."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from typing import TypeVar

from clusterctl.engine.events import EventSink, Note
from clusterctl.engine.interrupt import interruptible
from clusterctl.errors import ClusterctlError, Interrupted, UsageError
from clusterctl.kinds.text import TEXT
from clusterctl.network.gate import ensure_proven
from clusterctl.node.documents import ServiceDocument
from clusterctl.operations.session import Session
from clusterctl.serving.bench import BenchLoad
from clusterctl.serving.declaration import read_key
from clusterctl.serving.measuring import asked_for, measure, replicas_named, require_ready
from clusterctl.serving.soak import SoakRound
from clusterctl.survey.cluster import require_fit, single
from clusterctl.survey.load import ServiceCounters, service_counters, service_load
from clusterctl.survey.status import assess
from clusterctl.survey.survey import Survey, look_twice, take_survey

T = TypeVar("T")


def run(session: Session, name: str | None, load: BenchLoad, seconds: float) -> list[SoakRound]:
    """Repeat rounds for `seconds`, at least one; a round that would not finish in time, judging by
    the last one, is not started.

    After an interruption, return the finished rounds. A failure in a round is recorded as its
    problem, and does not end the soak.

    Raises UsageError for a service that is unknown, not ready, or generates no text.
    """
    inventory, sink = session.inventory, session.progress
    with session.connected() as transports:
        survey = take_survey(inventory, transports)
        survey.require_supervised_head()
        (document,) = asked_for([name] if name else [], survey)
        kind = require_ready(document.name, replicas_named(document.name, survey))
        if kind.paths != TEXT.paths:
            raise UsageError(f"{document.name} serves {kind.result}, and soak generates text")
        key = read_key(inventory, transports[inventory.head.name])
        rounds: list[SoakRound] = []
        first = _restarts(survey, document)
        began, took = time.monotonic(), 0.0
        end = began + seconds
        with interruptible(sink) as cancelled:
            while not rounds or (began + took <= end and not cancelled.is_set()):
                try:
                    rounds.append(_round(survey, document, load, key, first, cancelled, sink))
                except Interrupted:
                    break
                took, began = time.monotonic() - began, time.monotonic()
                left = max(0.0, end - began)
                sink(Note(f"round {len(rounds)} took {took:.0f} s, {left:.0f} s left"))
        return rounds


def _round(
    survey: Survey,
    document: ServiceDocument,
    load: BenchLoad,
    key: str,
    first: Mapping[str, int],
    cancelled: Event,
    sink: EventSink,
) -> SoakRound:
    inventory, transports = survey.inventory, survey.transports
    head, problems = transports[inventory.head.name], list[str]()

    def tried(step: Callable[[], T]) -> T | None:
        try:
            return step()
        except Interrupted:
            raise
        except ClusterctlError as error:
            problems.extend(map(str, single(error)))
            return None

    replicas = [each.document for each in replicas_named(document.name, survey)]
    before = service_counters(head, replicas, time.time)
    result = tried(lambda: measure(survey, document, load, key, cancelled, sink))
    after = service_counters(head, replicas, time.time)
    now = look_twice(partial(take_survey, inventory), transports)
    proof = None
    if len(inventory.hosts) > 1:
        proof = tried(
            lambda: ensure_proven(
                require_fit(now, inventory.hosts).gate_scope, sink, cancelled, again=True
            )
        )
    between = proof.record.network[:1] if proof else []
    since = _restarts(now, document)
    return SoakRound(
        time=time.time(),
        figures=result.figures if result else None,
        gate_mbit_s=between[0].bandwidth * 8 / 1e6 if between else None,
        problems=(*problems, *assess(now).problems),
        restarts={each: count - first.get(each, 0) for each, count in since.items()},
        request=_median_requests(before, after),
    )


def _restarts(survey: Survey, document: ServiceDocument) -> dict[str, int]:
    replicas = replicas_named(document.name, survey)
    return {each.name: each.state.restarts for each in replicas if each.state}


def _median_requests(
    before: Mapping[str, ServiceCounters], after: Mapping[str, ServiceCounters]
) -> dict[str, float]:
    """Return the median seconds of a request between two surveys, by replica."""
    loads = {name: service_load(after[name], before.get(name)) for name in after}
    return {name: load.request["p50"] for name, load in loads.items() if load.request}
