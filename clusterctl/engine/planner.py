"""Look at every host and say what a run would do. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.engine.plan import OnFailure, Plan, PlannedChange, Stage
from clusterctl.engine.step import Change, HostView, Step, Unknown
from clusterctl.errors import ClusterctlError, StepFailed, raise_all
from clusterctl.transport.fanout import fan_out, values


@dataclass(frozen=True)
class _HostPlan:
    """What one host's steps found, keyed by (stage, step) position, and what stopped the look."""

    found: Mapping[tuple[int, int], Change | Unknown]
    error: ClusterctlError | None
    stage: Stage | None = None  # Where the look was stopped

    @property
    def sets_aside(self) -> bool:
        return self.stage is not None and self.stage.on_failure is OnFailure.SET_HOST_ASIDE


@dataclass(frozen=True)
class Planned:
    """A plan for the hosts that could be looked at, and the errors of those that could not."""

    plan: Plan
    set_aside: Mapping[str, ClusterctlError]


def plan(stages: Sequence[Stage], views: Mapping[str, HostView]) -> Plan:
    """What `stages` would change on `views`: hosts in parallel, a host's steps in order.

    A step that fails to look because an earlier step of its host has yet to run is planned as
    Unknown. Raises what the checks raised, the errors of all hosts together.
    """
    plans = _looks(stages, views)
    raise_all(found.error for found in plans.values() if found.error)
    return Plan(tuple(_in_order(stages, plans)))


def plan_apart(stages: Sequence[Stage], views: Mapping[str, HostView]) -> Planned:
    """As `plan`; a host whose check fails in a stage that sets failed hosts aside is left out,
    with its error, and the others are planned. Raises the errors of the other stages."""
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
            try:
                change = _check(step, view, pending=bool(found))
            except ClusterctlError as error:
                error.host = error.host or view.host.name
                return _HostPlan(found, error, stage)
            if change is not None:
                found[at, position] = change
    return _HostPlan(found, None)


def _check(step: Step, view: HostView, *, pending: bool) -> Change | Unknown | None:
    """The step's own answer. With changes `pending` on the host, what it cannot look at now
    (an engine that is not installed yet) is not known, rather than wrong."""
    try:
        return step.check(view)
    except StepFailed as error:
        if not pending:
            raise
        return Unknown(error.summary)
