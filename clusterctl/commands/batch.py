"""`batch`: answer a file of requests with a service of the cluster."""

from __future__ import annotations

import time
from pathlib import Path

from clusterctl.engine.events import StepFinished, StepProgress, StepStarted
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.step import Change
from clusterctl.errors import Interrupted
from clusterctl.node.documents import ServiceDocument, from_json
from clusterctl.operations.session import Session
from clusterctl.ray_cluster.topology import base_url
from clusterctl.serving.batch import (
    AFTER_OTHERS,
    BatchCount,
    BatchRun,
    check_requests,
    opened_answers,
    read_requests,
)
from clusterctl.serving.declaration import read_key, served_at
from clusterctl.serving.vllm_flags import last_value, parse_arguments
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transport.tcp import Tunnel


def run(
    session: Session, service: str, requests: Path, answers: Path, concurrency: int
) -> BatchCount:
    """Send the requests that have no answer in `answers`, and append the answers to it.

    Raises UsageError for an unknown service, ConnectionFailed if it does not answer, Interrupted
    after Ctrl-C, and Problems with the invalid lines of `requests`.
    """
    inventory, sink = session.inventory, session.progress
    with session.connected((inventory.head,)) as transports:
        head = transports[inventory.head.name]
        survey = take_survey(inventory, transports)
        survey.require_supervised_head()
        api = served_at(survey, service)
        ids = check_requests(requests, api.served_name)
        with (
            opened_answers(answers) as (file, kept),
            Tunnel(head, api.address, api.port) as tunnel,
            interruptible(sink) as cancelled,
        ):
            count = BatchCount(len(ids), kept=len(kept.intersection(ids)))
            if count.kept == count.total:
                return count

            title, started = f"answer {count.total - count.kept} requests", time.monotonic()
            sink(StepStarted(head.host.name, title, Change(title)))

            def say() -> None:
                text = count.text(time.monotonic() - started)
                sink(StepProgress(head.host.name, title, text))

            url = base_url("127.0.0.1", tunnel.port)
            batch = BatchRun(url, read_key(inventory, head), file, count, concurrency)
            priority = priority_of(survey, service)
            missing = (
                request.with_priority(priority)
                for request in read_requests(requests, api.served_name)
                if request.custom_id not in kept
            )
            batch.send(missing, cancelled, say)
            if cancelled.is_set():
                raise Interrupted(
                    f"interrupted after {count.kept + count.answered} of {count.total} answers",
                    hint="the same command continues where this one stopped",
                )
            sink(StepFinished(head.host.name, title, "changed", time.monotonic() - started))
            return count


def priority_of(survey: Survey, service: str) -> int:
    """Return the `priority` of its requests: a service that schedules by that has others first."""
    found = survey.service(service)
    # Copies on the head: other hosts are not asked
    names = found.replica_names(found.members) or [service]
    texts = (survey.written.get(f"services/{name}.json") for name in names)
    argv = next((from_json(ServiceDocument, text).argv for text in texts if text), [])
    policy = last_value(parse_arguments(argv[3:]), "scheduling-policy")
    return AFTER_OTHERS if policy == "priority" else 0
