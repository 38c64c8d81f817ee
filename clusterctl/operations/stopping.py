"""Stop all replicas of a service."""

from __future__ import annotations

import time
from collections.abc import Sequence

from clusterctl.engine.events import (
    EventSink,
    StageFinished,
    StageStarted,
    StepFinished,
    StepStarted,
)
from clusterctl.engine.step import Change
from clusterctl.errors import raise_all
from clusterctl.serving.declaration import HostServices, members_file, service_file
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey
from clusterctl.transport.fanout import failures, fan_out
from clusterctl.transport.lock import ClusterLock


def end(
    survey: Survey,
    name: str,
    replicas: Sequence[Replica],
    lock: ClusterLock,
    sink: EventSink,
) -> None:
    """Stop these replicas, all that the service has, and take it out of the gateway. Raises
    StepFailed for replicas that do not end, after the others have."""
    inventory, started = survey.inventory, time.monotonic()
    head, path = inventory.head.name, members_file(inventory.cluster, name)
    title = f"Stop {name}"
    declared = survey.head_file(path)
    hosts = [replica.host for replica in replicas]
    hosts += [head] if declared is not None else []
    sink(StageStarted(title, tuple(dict.fromkeys(hosts))))

    def stop(replica: Replica) -> None:
        file = survey.answers[replica.host].files.get(service_file(inventory.cluster, replica.name))
        on_host = HostServices(inventory, survey.transports[replica.host], sink)
        on_host.stop(lock, replica.document, file)

    stopped = fan_out({replica.name: replica for replica in replicas}, stop)
    raise_all([*failures(stopped), *survey.errors.values()])
    if declared is not None:
        removing, step = time.monotonic(), f"{name} in the gateway"
        sink(StepStarted(head, step, Change(f"take {name} out of the gateway")))
        lock.replace(path, None, before=declared)
        sink(StepFinished(head, step, "changed", time.monotonic() - removing))
    sink(StageFinished(title, time.monotonic() - started))
