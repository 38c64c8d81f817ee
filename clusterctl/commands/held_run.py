"""Stages carried out while a lock is held, until they are done or Ctrl-C ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from clusterctl.engine.events import EventSink
from clusterctl.engine.executor import RunOutcome, execute
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.plan import Stage
from clusterctl.engine.step import HostView


def execute_held(
    stages: Sequence[Stage],
    views: Mapping[str, HostView],
    sink: EventSink,
    ensure_held: Callable[[], None],
) -> RunOutcome:
    """`engine.executor.execute`; `ensure_held` raises before a change when the lock was lost."""
    with interruptible(sink) as cancelled:
        return execute(stages, views, sink, cancelled=cancelled, before_change=ensure_held)
