"""The events that a run reports. Reporting code depends only on these and on plans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError


@dataclass(frozen=True)
class StageStarted:
    title: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class StepStarted:
    """A step has found a change to make on a host, and starts."""

    host: str
    step: str
    change: Change


@dataclass(frozen=True)
class StepProgress:
    host: str
    step: str
    text: str


@dataclass(frozen=True)
class StepFinished:
    host: str
    step: str
    outcome: Literal["unchanged", "changed"]
    seconds: float


@dataclass(frozen=True)
class StepBroke:
    host: str
    step: str
    error: ClusterctlError


@dataclass(frozen=True)
class HostSetAside:
    host: str
    reason: str


@dataclass(frozen=True)
class StageFinished:
    title: str
    seconds: float


@dataclass(frozen=True)
class Note:
    """A message that belongs to no step, such as why the run is waiting."""

    text: str
    host: str | None = None


Event = (
    StageStarted
    | StepStarted
    | StepProgress
    | StepFinished
    | StepBroke
    | HostSetAside
    | StageFinished
    | Note
)
EventSink = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A sink that discards events."""


def one_at_a_time(sink: EventSink) -> EventSink:
    """Return a wrapper of `sink` that several threads may call."""
    lock = threading.Lock()

    def locked(event: Event) -> None:
        with lock:
            sink(event)

    return locked
