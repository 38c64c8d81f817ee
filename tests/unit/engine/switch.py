"""Hosts without facts or connection, and steps made of functions, for the engine alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from clusterctl.engine.events import Event
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host
from tests.fakes.transport import FakeTransport

Check = Callable[[HostView], Change | Unknown | None]


@dataclass
class Switch:
    """A step over a set of host names: off until applied; `on_apply` runs first."""

    title: str = "switch"
    on: set[str] = field(default_factory=set)
    on_apply: Callable[[HostView], None] = lambda _: None
    on_check: Check | None = None
    sticks: bool = True
    applied: list[str] = field(default_factory=list)

    def check(self, view: HostView) -> Change | Unknown | None:
        if self.on_check is not None:
            return self.on_check(view)
        return None if view.host.name in self.on else Change(f"turn {self.title} on")

    def apply(self, view: HostView, change: Change) -> None:
        self.applied.append(view.host.name)
        self.on_apply(view)
        if self.sticks:
            self.on.add(view.host.name)


@dataclass
class Record:
    """A sink that fails when two threads are in it at once."""

    events: list[Event] = field(default_factory=list)
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: Event) -> None:
        assert self._busy.acquire(blocking=False), "sink called by two threads at once"
        self.events.append(event)
        self._busy.release()

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def view(name: str) -> HostView:
    host = Host(name=name, address=f"{name}.example")
    return HostView(host, cast("HostFacts", None), FakeTransport(host))


def views(*names: str) -> dict[str, HostView]:
    return {name: view(name) for name in names}
