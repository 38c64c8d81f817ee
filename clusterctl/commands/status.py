"""`status`: query every host once, in parallel, and combine the answers. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.diagnosis.verdict import cause_of_failure, in_a_sentence
from clusterctl.inventory.model import Inventory
from clusterctl.serving.declaration import log_end
from clusterctl.survey.drift import drift
from clusterctl.survey.load import (
    ServiceCounters,
    host_loads,
    service_counters,
    service_load,
)
from clusterctl.survey.status import ClusterStatus, assess, with_causes, with_loads
from clusterctl.survey.survey import Survey, connected, look_twice, take_survey
from clusterctl.transport.credentials import Credentials

MOST_LOGS = 4

_FAILING = frozenset({"failed", "backing-off"})


@contextmanager
def read(
    inventory: Inventory, credentials: Credentials, *, wide: bool = False
) -> Iterator[Callable[[], ClusterStatus]]:
    """Yield a function that reads the cluster's status; connections stay open between calls.
    `wide`: with the load of hosts and services, the latter since the previous call."""
    with connected(
        inventory.hosts, credentials, connect_timeout=deadlines.STATUS_CONNECT
    ) as transports:
        before: dict[str, ServiceCounters] = {}

        def with_load(found: ClusterStatus, survey: Survey) -> ClusterStatus:
            gpus = accelerator_named(inventory.accelerator).gpu_probe.load
            hosts = host_loads({name: transports[name] for name in survey.answers}, gpus)
            head = transports[inventory.head.name]
            ready = [row.document for row in found.services if row.serves]
            now = service_counters(head, ready, time.time) if survey.head else {}
            services = {name: service_load(now[name], before.get(name)) for name in now}
            before.update(now)
            return with_loads(found, hosts, services)

        def once() -> ClusterStatus:
            look = partial(
                take_survey,
                inventory,
                limit=2,
                timeout=deadlines.STATUS_LOOK,
            )
            survey = look_twice(look, transports)
            found = assess(survey, drift(survey))
            found = with_causes(found, causes_of_failures(found, survey))
            return with_load(found, survey) if wide else found

        yield once


def causes_of_failures(found: ClusterStatus, survey: Survey) -> dict[str, str]:
    """Return why services fail, according to their logs, by name: for at most MOST_LOGS, since each
    is read over SSH."""
    failing = [row for row in found.services if row.condition in _FAILING]
    causes = {}
    for row in failing[:MOST_LOGS]:
        host = survey.transports[row.host]
        log = log_end(survey.inventory, host, row.name, timeout=deadlines.STATUS_LOOK)
        if cause := cause_of_failure(log):
            causes[row.name] = in_a_sentence(cause)
    return causes
