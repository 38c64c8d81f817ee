"""`bootstrap --install-driver`: install the driver first, which all later checks need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import Plan, Stage
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.engine.step import HostView
from clusterctl.operations.session import Session
from clusterctl.steps.nvidia_driver import DriverSource, NvidiaDriver
from clusterctl.survey.survey import take_survey
from clusterctl.transport.lock import ClusterLock


def make_plan(session: Session, source: DriverSource) -> Plan:
    """Return the plan of `run`. Changes nothing."""
    with _seen(session) as found:
        return plan_stages(_stages(session, source), found)


def run(session: Session, source: DriverSource, *, agree: Callable[[Plan], None]) -> int:
    """Install the driver where it is missing; return how many hosts changed. Raises all errors."""
    inventory, stages = session.inventory, _stages(session, source)
    with _seen(session) as found:

        def act(_plan: Plan, lock: ClusterLock | None) -> int:
            if lock is None:
                return 0
            return execute_held(stages, found, session.progress, lock.ensure_held).changed

        head = found[inventory.head.name].transport
        lock = partial(ClusterLock, head, inventory.cluster, "bootstrap")
        return carry_out(
            lambda: plan_stages(stages, found), agree, lock, act, lambda plan: plan.shown
        )


def _stages(session: Session, source: DriverSource) -> tuple[Stage, ...]:
    names = tuple(host.name for host in session.hosts)
    return (Stage("NVIDIA driver", names, (NvidiaDriver(source),)),)


@contextmanager
def _seen(session: Session) -> Iterator[dict[str, HostView]]:
    """Yield views of the session's hosts and the head, which holds the cluster's lock."""
    involved = session.inventory.with_head({host.name for host in session.hosts})
    with session.connected(involved) as transports:
        yield take_survey(session.inventory, transports).require_answers().views
