"""Determine the changes that a run would make on every host, without making any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.engine.plan import OnFailure, Plan, PlannedChange, Stage
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import ClusterctlError, StepFailed, raise_all
from clusterctl.transport.fanout import fan_out, values


@dataclass(frozen=True)
class _HostPlan:
    """One host's changes, by position of stage and step, and the error that ended its checks."""

    found: Mapping[tuple[int, int], Change | Unknown]
    error: ClusterctlError | None
    stage: Stage | None = None  # The stage that failed

    @property
    def sets_aside(self) -> bool:
        return self.stage is not None and self.stage.on_failure is OnFailure.SET_HOST_ASIDE


@dataclass(frozen=True)
class Planned:
    """A plan for the hosts that could be checked, and the errors of the others."""

    plan: Plan
    set_aside: Mapping[str, ClusterctlError]


def plan(stages: Sequence[Stage], views: Mapping[str, HostView]) -> Plan:
    """Return the changes that `stages` would make. Hosts are checked in parallel, steps in order.

    A step that cannot check because an earlier step of its host has not run yet is planned as
    Unknown. Raises the errors of all hosts together.
    """
    plans = _looks(stages, views)
    raise_all(found.error for found in plans.values() if found.error)
    return Plan(tuple(_in_order(stages, plans)))


def plan_apart(stages: Sequence[Stage], views: Mapping[str, HostView]) -> Planned:
    """Like `plan`, but leave out hosts whose check fails in a stage with SET_HOST_ASIDE. Raises the
    errors of the other stages."""
    plans = _looks(stages, views)
    raise_all(found.error for found in plans.values() if found.error and not found.sets_aside)
    set_aside = {name: found.error for name, found in plans.items() if found.error}
    fit = {name: found for name, found in plans.items() if name not in set_aside}
    return Planned(Plan(tuple(_in_order(stages, fit))), set_aside)


def _looks(stages: Sequence[Stage], views: Mapping[str, HostView]) -> dict[str, _HostPlan]:
    named = {name for stage in stages for name in stage.hosts}
    looked = {name: view for name, view in views.items() if name in named}
    return values(fan_out(looked, lambda view: _look(stages, view)))


def _in_order(stages: Sequence[Stage], plans: Mapping[str, _HostPlan]) -> Iterator[PlannedChange]:
    for at, stage in enumerate(stages):
        for host in (name for name in stage.hosts if name in plans):
            for position, step in enumerate(stage.steps):
                change = plans[host].found.get((at, position))
                if change is not None:
                    yield PlannedChange(stage.title, host, step.title, change)


def _look(stages: Sequence[Stage], view: HostView) -> _HostPlan:
    found: dict[tuple[int, int], Change | Unknown] = {}
    for at, stage in enumerate(stages):
        if view.host.name not in stage.hosts:
            continue
        for position, step in enumerate(stage.steps):
            change: Change | Unknown | None
            try:
                change = step.check(view)
            except ClusterctlError as error:
                # If changes are pending on this host, a failed check (of an engine that is not
                # installed yet) means that the result is unknown, not that the host is wrong.
                if not (found and isinstance(error, StepFailed)):
                    error.host = error.host or view.host.name
                    return _HostPlan(found, error, stage)
                change = Unknown(error.summary)
            if change is not None:
                found[at, position] = change
    return _HostPlan(found, None)
