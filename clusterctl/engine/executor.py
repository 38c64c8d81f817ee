"""Carry out stages on hosts: check, apply, check again. Says what it does as events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from clusterctl.engine.events import (
    EventSink,
    HostSetAside,
    StageFinished,
    StageStarted,
    StepBroke,
    StepFinished,
    StepProgress,
    StepStarted,
    one_at_a_time,
)
from clusterctl.engine.plan import OnFailure, Stage
from clusterctl.engine.step import Change, HostView, Step, Unknown
from clusterctl.errors import ClusterctlError, Interrupted, StepFailed, raise_all
from clusterctl.transport.fanout import fan_out, values


class Cancelled(Protocol):
    """Whether the user asked to stop; a threading.Event is one."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True)
class RunOutcome:
    """How a run went that came to its end."""

    changed: int  # Changes made, over all hosts
    set_aside: Mapping[str, ClusterctlError]  # Hosts dropped on the way, and why


@dataclass(frozen=True)
class _HostResult:
    changed: int
    error: ClusterctlError | None = None
    stopped_before: str | None = None  # The step that was not begun, because the user asked to stop


def execute(
    stages: Sequence[Stage],
    views: Mapping[str, HostView],
    sink: EventSink,
    *,
    cancelled: Cancelled | None = None,
    before_change: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Run `stages` in order, each to its end on all its hosts before the next begins.

    Every step is checked again when its turn comes, so a plan that went stale does no harm.
    `sink` is never called by two threads at once. `before_change` is called before each change
    and raises what is to keep it from being made, as when the cluster's lock was lost.

    Raises the errors of a stage whose policy is STOP, all hosts' together, after its running
    hosts have come to their end; Interrupted when `cancelled` was set before the last step.
    """
    run = _Run(views, one_at_a_time(sink), cancelled or threading.Event(), before_change)
    for stage in stages:
        run.stage(stage)
    return RunOutcome(run.changed, run.set_aside)


@dataclass
class _Run:
    views: Mapping[str, HostView]
    sink: EventSink
    cancelled: Cancelled
    before_change: Callable[[], None]
    changed: int = 0
    set_aside: dict[str, ClusterctlError] = field(default_factory=dict)

    def stage(self, stage: Stage) -> None:
        hosts = tuple(name for name in stage.hosts if name not in self.set_aside)
        if not hosts or not stage.steps:
            return
        if self.cancelled.is_set():
            raise _interrupted(stage.title)
        started = time.monotonic()
        self.sink(StageStarted(stage.title, hosts))
        at_work = {name: self.views[name] for name in hosts}
        self._barrier(stage, values(fan_out(at_work, lambda view: self._host(stage, view))))
        self.sink(StageFinished(stage.title, time.monotonic() - started))

    def _barrier(self, stage: Stage, results: Mapping[str, _HostResult]) -> None:
        """Count what was done, and decide whether the run goes on."""
        self.changed += sum(result.changed for result in results.values())
        failed = {name: result.error for name, result in results.items() if result.error}
        stopped = [r.stopped_before for r in results.values() if r.stopped_before]
        if stopped:
            raise_all([*failed.values(), _interrupted(stopped[0])])
        if stage.on_failure is OnFailure.STOP:
            raise_all(failed.values())
        for name, error in failed.items():
            self.set_aside[name] = error
            self.sink(HostSetAside(name, error.summary))

    def _host(self, stage: Stage, view: HostView) -> _HostResult:
        """The stage's steps on one host, up to the first that fails."""
        changed = 0
        for step in stage.steps:
            if self.cancelled.is_set():
                return _HostResult(changed, stopped_before=step.title)
            try:
                changed += self._step(step, view)
            except ClusterctlError as error:
                error.host = error.host or view.host.name
                self.sink(StepBroke(view.host.name, step.title, error))
                return _HostResult(changed, error)
        return _HostResult(changed)

    def _step(self, step: Step, view: HostView) -> bool:
        """Bring one step about; whether something was changed."""
        name = view.host.name
        view = replace(view, say=lambda text: self.sink(StepProgress(name, step.title, text)))
        started = time.monotonic()
        change = step.check(view)
        if change is not None:
            self._apply(step, view, change)
        self.sink(
            StepFinished(
                name,
                step.title,
                "unchanged" if change is None else "changed",
                time.monotonic() - started,
            )
        )
        return change is not None

    def _apply(self, step: Step, view: HostView, change: Change | Unknown) -> None:
        if isinstance(change, Unknown):
            raise StepFailed(f"{step.title}: cannot be told: {change.reason}")
        self.before_change()
        self.sink(StepStarted(view.host.name, step.title, change))
        step.apply(view, change)
        remaining = step.check(view)
        if remaining is not None:
            raise _no_effect(step, remaining)


def _no_effect(step: Step, remaining: Change | Unknown) -> StepFailed:
    wanted = remaining.summary if isinstance(remaining, Change) else remaining.reason
    return StepFailed(
        f"{step.title}: the change did not take effect; still to do: {wanted}",
        hint="something else on the host may undo it: `clusterctl plan` shows what differs",
    )


def _interrupted(before: str) -> Interrupted:
    return Interrupted(
        f"stopped on request before: {before}",
        hint="run the same command again: it goes on where this run stopped",
    )
