"""`bootstrap`: turn bare hosts into a Ray cluster. What it does is the list in
`operations/bootstrap_stages.py`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from clusterctl.containers.drivers import driver_for
from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.events import EventSink, Note
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.plan import OnFailure, Plan, plan_apart
from clusterctl.errors import ClusterctlError
from clusterctl.operations.bootstrap_stages import (
    Bootstrapped,
    Run,
    Target,
    bring_about,
    host_stages,
)
from clusterctl.operations.session import Session
from clusterctl.steps.engines import Engines
from clusterctl.survey.cluster import Cluster, require_fit, single
from clusterctl.survey.survey import take_survey
from clusterctl.transport.lock import ClusterLock


def make_plan(session: Session) -> tuple[Plan, tuple[ClusterctlError, ...]]:
    """Return the plan of `run`. Reports which interfaces the hosts would use.

    If requirements keep `run` from starting, the plan has the first stages for the hosts that meet
    theirs, along with the errors of the others."""
    inventory, hosts, sink = session.inventory, session.hosts, session.progress
    with session.connected() as transports:
        survey = take_survey(inventory, transports)
        try:
            cluster = require_fit(survey, hosts)
        except ClusterctlError as error:
            errors = tuple(single(error))
            wrong = {each.host for each in errors}
            fit = tuple(h.name for h in hosts if h.name in survey.views and h.name not in wrong)
            sink(Note("not the whole plan: the rest depends on the problems below"))
            stages = host_stages(inventory, fit, survey.facts)
            each = [replace(stage, on_failure=OnFailure.SET_HOST_ASIDE) for stage in stages]
            found = plan_apart(each, survey.views)
            return found.plan, (*errors, *found.set_aside.values())
        for node in cluster.topology.nodes:
            for reason in node.explain:
                sink(Note(reason, node.host))
        target = Target.of(cluster, tuple(host.name for host in hosts))
        for text in target.roll.notes():
            sink(Note(text))
        return target.plan, ()


def run(session: Session, *, agree: Callable[[Plan], None]) -> Bootstrapped:
    """Bootstrap the session's hosts, then prove that they and the head have joined Ray, and that
    collectives work over their links.

    Hosts left out are only queried for their place in the cluster, and need not answer.

    `agree` gets the plan, and raises if the user declines. Raises the errors of all hosts together;
    RayNotFormed when Ray does not reach the nodes and GPUs declared in the inventory.
    """
    inventory, hosts, sink = session.inventory, session.hosts, session.progress
    names, engines = tuple(host.name for host in hosts), Engines(driver_for)
    with session.connected() as transports:
        lock_of = partial(ClusterLock.of, inventory, transports, "bootstrap")

        def look() -> Target:
            cluster = require_fit(take_survey(inventory, transports), hosts)
            return Target.of(cluster, names, engines)

        def ask(found: Target) -> None:
            note_left_out(found.cluster, sink)
            for text in found.roll.notes():
                sink(Note(text))
            agree(found.plan)

        def act(found: Target, lock: ClusterLock | None) -> Bootstrapped:
            with ExitStack() as stack:
                held = lock or stack.enter_context(lock_of())
                cancelled = stack.enter_context(interruptible(sink))
                target = Target.of(found.cluster, names, engines, held, sink)
                return bring_about(Run(target, hosts, not found.plan.empty, held, sink, cancelled))

        return carry_out(look, ask, lock_of, act, lambda found: found.plan.shown)


def note_left_out(cluster: Cluster, sink: EventSink) -> None:
    """Report the hosts that --limit leaves out."""
    answered = [name for name in cluster.left_out if name in cluster.views]
    silent = [name for name in cluster.left_out if name not in cluster.views]
    if answered:
        left = ", ".join(answered)
        sink(Note(f"left out by --limit, neither changed nor waited for: {left}"))
    if silent:
        sink(Note(f"left out by --limit, and does not answer: {', '.join(silent)}"))
