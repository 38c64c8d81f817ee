"""Run stages on hosts: check, apply, check again. Progress is reported as events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, Protocol

from clusterctl import deadlines
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
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.plan import OnFailure, Stage
from clusterctl.engine.step import Change, HostView, Step, Unknown
from clusterctl.errors import ClusterctlError, Interrupted, StepFailed, raise_all
from clusterctl.transport.fanout import fan_out, values


class Cancelled(Protocol):
    """Whether the user asked to stop; a threading.Event implements it."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run that was not stopped."""

    changed: int  # Changes made, over all hosts
    set_aside: Mapping[str, ClusterctlError]  # Hosts that failed and were left out of later stages


@dataclass(frozen=True)
class _HostResult:
    changed: int
    error: ClusterctlError | None = None
    stopped_before: str | None = None  # The step not begun because the user asked to stop


def execute(
    stages: Sequence[Stage],
    views: Mapping[str, HostView],
    sink: EventSink,
    *,
    cancelled: Cancelled | None = None,
    before_change: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Run `stages` in order, each on all its hosts before the next begins.

    Every step is checked again before it is applied, so an outdated plan does no harm. `sink` is
    never called by two threads at once. `before_change` is called before each change, and raises to
    prevent it, for example when the cluster's lock was lost.

    If a host fails in a stage whose policy is STOP, the errors of all hosts are raised once the
    others are done. Raises Interrupted if `cancelled` was set before the last step.
    """
    run = Execution(views, one_at_a_time(sink), cancelled or threading.Event(), before_change)
    for stage in stages:
        run.stage(stage)
    return RunOutcome(run.changed, run.set_aside)


def execute_held(
    stages: Sequence[Stage],
    views: Mapping[str, HostView],
    sink: EventSink,
    ensure_held: Callable[[], None],
) -> RunOutcome:
    """Call `execute` under a lock, until it is done or Ctrl-C stops it. `ensure_held` raises before
    a change if the lock was lost."""
    with interruptible(sink) as cancelled:
        return execute(stages, views, sink, cancelled=cancelled, before_change=ensure_held)


@dataclass
class Execution:
    """A run, stage by stage. `views` may be replaced between stages by those of a later survey."""

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
        # All at once: a transfer's bytes pass through all hosts, and would have to pass again for
        # hosts that begin when others are done.
        results = values(fan_out(at_work, lambda view: self._host(stage, view), limit=len(hosts)))
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
        self.sink(StageFinished(stage.title, time.monotonic() - started))

    def _host(self, stage: Stage, view: HostView) -> _HostResult:
        """Run the stage's steps on one host, up to the first failure."""
        changed = 0
        for step in stage.steps:
            if self.cancelled.is_set():
                return _HostResult(changed, stopped_before=step.title)
            try:
                changed += self._through_breaks(step, view)
            except ClusterctlError as error:
                error.host = error.host or view.host.name
                self.sink(StepBroke(view.host.name, step.title, error))
                return _HostResult(changed, error)
        return _HostResult(changed)

    def _through_breaks(self, step: Step, view: HostView) -> bool:
        """Run one step, and restart it whenever the host's connection breaks: it checks first, and
        continues from the current state. Returns whether it changed anything."""
        name, began = view.host.name, time.monotonic()
        for attempt in count(1):
            breaks = view.transport.breaks
            try:
                return self._step(step, view) or attempt > 1
            except ClusterctlError:
                late = time.monotonic() - began > deadlines.THROUGH_BREAKS
                if view.transport.breaks == breaks or late or self.cancelled.is_set():
                    raise
            text = f"the connection broke, time {attempt}: continuing from the current state"
            self.sink(StepProgress(name, step.title, text))
        raise AssertionError("the last attempt returns or raises")

    def _step(self, step: Step, view: HostView) -> bool:
        """Run one step. Returns whether it changed anything."""
        name = view.host.name
        view = replace(view, say=lambda text: self.sink(StepProgress(name, step.title, text)))
        started = time.monotonic()
        change = step.check(view)
        if isinstance(change, Unknown):
            raise StepFailed(f"{step.title}: cannot be determined: {change.reason}")
        if change is not None:
            self.before_change()
            self.sink(StepStarted(name, step.title, change))
            step.apply(view, change)
            remaining = step.check(view)
            if remaining is not None:
                wanted = remaining.summary if isinstance(remaining, Change) else remaining.reason
                raise StepFailed(
                    f"{step.title}: the change had no effect; still to do: {wanted}",
                    hint="something on the host may undo it: `clusterctl plan` shows what differs",
                )
        outcome: Literal["unchanged", "changed"] = "unchanged" if change is None else "changed"
        self.sink(StepFinished(name, step.title, outcome, time.monotonic() - started))
        return change is not None


def _interrupted(before: str) -> Interrupted:
    return Interrupted(
        f"stopped on request before: {before}",
        hint="run the same command again: it continues where this run stopped",
    )
