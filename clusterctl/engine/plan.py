"""A run as data: stages of steps on hosts, and the changes that they would make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum

from clusterctl.engine.step import Change, HostView, Step, Unknown
from clusterctl.errors import ClusterctlError, StepFailed, raise_all
from clusterctl.transport.fanout import fan_out, values


class OnFailure(Enum):
    """Effect of a failed host on the rest of the run."""

    STOP = "stop"
    SET_HOST_ASIDE = "set host aside"


@dataclass(frozen=True)
class Stage:
    """Steps on hosts: hosts run in parallel, a host's steps in order, with a barrier at the end."""

    title: str
    hosts: tuple[str, ...]
    steps: tuple[Step, ...]
    on_failure: OnFailure = OnFailure.STOP


@dataclass(frozen=True)
class PlannedChange:
    """One line of a plan."""

    stage: str
    host: str
    step: str
    change: Change | Unknown


@dataclass(frozen=True)
class Plan:
    """All changes that a run would make, in order."""

    changes: tuple[PlannedChange, ...]

    @property
    def empty(self) -> bool:
        return not self.changes

    @property
    def shown(self) -> Set[object]:
        """What the user sees of the plan, for `carry_out`."""
        return {(each.stage, each.host, each.step, each.change) for each in self.changes}

    @property
    def disruptive(self) -> tuple[PlannedChange, ...]:
        """The changes that stop or restart a service."""
        return tuple(
            planned
            for planned in self.changes
            if isinstance(planned.change, Change) and planned.change.disruptive
        )


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
    return _planned(stages, views, apart=False).plan


def plan_apart(stages: Sequence[Stage], views: Mapping[str, HostView]) -> Planned:
    """Like `plan`, but leave out hosts whose check fails in a stage with SET_HOST_ASIDE. Raises the
    errors of all other stages."""
    return _planned(stages, views, apart=True)


@dataclass(frozen=True)
class _HostPlan:
    """One host's changes, by position of stage and step, and the error that ended its checks."""

    found: Mapping[tuple[int, int], Change | Unknown]
    error: ClusterctlError | None = None
    sets_aside: bool = False  # The policy of the stage that failed


def _planned(stages: Sequence[Stage], views: Mapping[str, HostView], *, apart: bool) -> Planned:
    named = {name for stage in stages for name in stage.hosts}
    looked = {name: view for name, view in views.items() if name in named}
    plans = values(fan_out(looked, lambda view: _look(stages, view)))
    raise_all(p.error for p in plans.values() if p.error and not (apart and p.sets_aside))
    set_aside = {name: found.error for name, found in plans.items() if found.error}
    changes = (
        PlannedChange(stage.title, host, step.title, change)
        for at, stage in enumerate(stages)
        for host in stage.hosts
        if host in plans and host not in set_aside
        for position, step in enumerate(stage.steps)
        if (change := plans[host].found.get((at, position))) is not None
    )
    return Planned(Plan(tuple(changes)), set_aside)


def _checked(step: Step, view: HostView) -> Change | Unknown | None:
    """Check a step, and again if the connection broke meanwhile: checks only read."""
    breaks = view.transport.breaks
    try:
        return step.check(view)
    except ClusterctlError:
        if view.transport.breaks == breaks:
            raise
        return step.check(view)


def _look(stages: Sequence[Stage], view: HostView) -> _HostPlan:
    found: dict[tuple[int, int], Change | Unknown] = {}
    for at, stage in enumerate(stages):
        if view.host.name not in stage.hosts:
            continue
        for position, step in enumerate(stage.steps):
            change: Change | Unknown | None
            try:
                change = _checked(step, view)
            except ClusterctlError as error:
                # If changes are pending on this host, a failed check (of an engine that is not
                # installed yet) means that the result is unknown, not that the host is wrong.
                if not (found and isinstance(error, StepFailed)):
                    error.host = error.host or view.host.name
                    return _HostPlan(found, error, stage.on_failure is OnFailure.SET_HOST_ASIDE)
                change = Unknown(error.summary)
            if change is not None:
                found[at, position] = change
    return _HostPlan(found)
