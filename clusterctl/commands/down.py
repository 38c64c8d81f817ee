"""`down`: take the cluster down; with purge, restore hosts to the state before bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from clusterctl.engine.events import EventSink, HostSetAside, Note
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import Plan, Planned, plan_apart
from clusterctl.engine.step import HostView
from clusterctl.errors import raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.operations.nodes import removal_stages
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


def make_plan(
    inventory: Inventory, hosts: Iterable[Host], credentials: Credentials, *, purge: bool
) -> Planned:
    """Return the plan of `run`, and the errors of hosts without one. Changes nothing."""
    hosts = tuple(hosts)
    with connected(hosts, credentials) as transports:
        survey = take_survey(inventory, transports)
        ready = survey.views
        planned = plan_apart(removal_stages(inventory, tuple(ready), purge=purge), ready)
    return Planned(planned.plan, {**survey.errors, **planned.set_aside})


def run(
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    *,
    purge: bool,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> int:
    """Take the cluster down on `hosts`, and return the number of changes. Hosts that do not answer
    do not prevent the others.

    The head is contacted in any case, for the cluster's lock. Raises the errors of all hosts
    together, after the others are done.
    """
    limited = {host.name for host in hosts}
    with connected(inventory.with_head(limited), credentials) as transports:
        survey = take_survey(inventory, transports)
        for stranger in survey.strangers:
            sink(Note(f"{stranger.summary}; it is left as it is", stranger.host))
        mine = {name: view for name, view in survey.views.items() if name in limited}
        with _locked(inventory, survey.views, sink) as ensure_held:
            planned = plan_apart(removal_stages(inventory, tuple(mine), purge=purge), mine)
            for name, error in planned.set_aside.items():
                sink(HostSetAside(name, error.summary))
            agree(planned.plan)
            fit = tuple(name for name in mine if name not in planned.set_aside)
            ordered = removal_stages(inventory, fit, purge=purge) if planned.plan.changes else ()
            outcome = execute_held(ordered, mine, sink, ensure_held)
    silent = [error for name, error in survey.errors.items() if name in limited]
    raise_all([*silent, *planned.set_aside.values(), *outcome.set_aside.values()])
    return outcome.changed


@contextmanager
def _locked(
    inventory: Inventory, ready: Mapping[str, HostView], sink: EventSink
) -> Iterator[Callable[[], None]]:
    """Hold the cluster's lock; yield a function that raises once it is lost. If the head does not
    answer, report that and continue without a lock, so that the other hosts are still taken
    down."""
    head = ready.get(inventory.head.name)
    if head is None:
        sink(Note("does not answer: continuing without the cluster's lock", inventory.head.name))
        yield lambda: None
        return
    with ClusterLock(head.transport, inventory.cluster, "down") as lock:
        yield lock.ensure_held
