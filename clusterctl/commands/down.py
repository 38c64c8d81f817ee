"""`down`: take the cluster down; with purge, restore hosts to the state before bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from clusterctl.engine.carry_out import Held, carry_out
from clusterctl.engine.events import HostSetAside, Note
from clusterctl.engine.executor import RunOutcome, execute_held
from clusterctl.engine.plan import Plan, Planned, plan_apart
from clusterctl.engine.step import HostView
from clusterctl.errors import raise_all
from clusterctl.inventory.model import Inventory
from clusterctl.operations.nodes import removal_stages
from clusterctl.operations.session import Session
from clusterctl.survey.survey import take_survey
from clusterctl.transport.lock import ClusterLock


def make_plan(session: Session, *, purge: bool) -> Planned:
    """Return the plan of `run`, and the errors of hosts without one. Changes nothing."""
    inventory = session.inventory
    with session.connected(session.hosts) as transports:
        survey = take_survey(inventory, transports)
        ready = survey.views
        planned = plan_apart(removal_stages(inventory, tuple(ready), purge=purge), ready)
    return Planned(planned.plan, {**survey.errors, **planned.set_aside})


def run(session: Session, *, purge: bool, agree: Callable[[Plan], None]) -> int:
    """Take the cluster down on the session's hosts, and return the number of changes. Hosts that do
    not answer do not hold up the others.

    The head is contacted in any case, for the cluster's lock. Raises the errors of all hosts
    together, after the others are done.
    """
    inventory, sink = session.inventory, session.progress
    limited = {host.name for host in session.hosts}
    with session.connected(inventory.with_head(limited)) as transports:
        survey = take_survey(inventory, transports)
        for stranger in survey.strangers:
            sink(Note(f"{stranger.summary}; it stays as it is", stranger.host))
        mine = {name: view for name, view in survey.views.items() if name in limited}
        head = survey.views.get(inventory.head.name)
        if head is None:
            text = "does not answer: continuing without the cluster's lock"
            sink(Note(text, inventory.head.name))

        def look() -> Planned:
            return plan_apart(removal_stages(inventory, tuple(mine), purge=purge), mine)

        def ask(planned: Planned) -> None:
            for name, error in planned.set_aside.items():
                sink(HostSetAside(name, error.summary))
            agree(planned.plan)

        def act(planned: Planned, lock: Held | None) -> RunOutcome:
            if lock is None:
                return RunOutcome(0, planned.set_aside)
            fit = tuple(name for name in mine if name not in planned.set_aside)
            stages = removal_stages(inventory, fit, purge=purge)
            done = execute_held(stages, mine, sink, lock.ensure_held)
            return replace(done, set_aside={**planned.set_aside, **done.set_aside})

        outcome = carry_out(
            look, ask, partial(_lock_of, inventory, head), act, lambda planned: planned.plan.shown
        )
    silent = [error for name, error in survey.errors.items() if name in limited]
    raise_all([*silent, *outcome.set_aside.values()])
    return outcome.changed


def _lock_of(inventory: Inventory, head: HostView | None) -> AbstractContextManager[Held]:
    """Return the cluster's lock, or a dummy if the head does not answer, so that the other hosts
    are still taken down."""
    if head is None:
        return nullcontext(_Unlocked())
    return ClusterLock(head.transport, inventory.cluster, "down")


class _Unlocked:
    def ensure_held(self) -> None:
        """Do nothing: there is no lock to lose."""
