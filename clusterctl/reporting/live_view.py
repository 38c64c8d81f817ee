"""The live screen of `status --watch`: what runs, its recent past, and what changed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from clusterctl.reporting.escaping import one_line
from clusterctl.reporting.status_view import status_screen
from clusterctl.reporting.text import clock, count
from clusterctl.survey.status import ClusterStatus, ServiceRow

_LEVELS = "▁▂▃▄▅▆▇█"
_KEPT = 240  # Looks that a line can show; what does not fit the terminal is left out
_EVENTS = 8

# A problem that only lasts longer is the same: `last wrote 41 s ago`
_DURATION = re.compile(r"\b[\d.]+ (?:s|min|h|days)\b")


class LiveStatus:
    """Remembers successive states of a cluster, and draws the latest with its history."""

    def __init__(self) -> None:
        self._before: tuple[float, ClusterStatus] | None = None
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._past: dict[tuple[str, str], deque[float]] = {}

    def look(self, status: ClusterStatus, now: float) -> list[str]:
        """Record the state at `now` (Unix seconds), and return what has changed since the previous
        one, a sentence each with its time."""
        seconds = now - self._before[0] if self._before else 0.0
        before = self._before[1] if self._before else status
        shown = set()
        for (name, unit), value in _figures(before, status, seconds):
            shown.add((name, unit))
            self._past.setdefault((name, unit), deque(maxlen=_KEPT)).append(value)
        for gone in self._past.keys() - shown:
            del self._past[gone]
        changes = [one_line(f"{clock(now)}  {text}") for text in changes_between(before, status)]
        self._events.extend(changes)
        self._before = now, status
        return changes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._before is None:
            return
        now, status = self._before
        parts: list[RenderableType] = [self._load(options.max_width), Text()]
        if self._events:
            parts += [Text(event, style="yellow") for event in reversed(self._events)]
            parts.append(Text())
        whole = Group(
            Text(f"{clock(now)} · Ctrl-C ends", style="dim"),
            Group(*parts) if self._past or self._events else Text(),
            status_screen(status),
        )
        lines = console.render_lines(whole, options.update(height=None), pad=False)
        room = options.max_height
        if len(lines) > room:
            more = count(len(lines) - room + 1, "more line")
            told = Text(f"{more} than this screen has: clusterctl status", style="bold yellow")
            lines = [*lines[: room - 1], *console.render_lines(told, options.update(height=1))]
        for line in lines:
            yield Segments([*line, Segment.line()])

    def _load(self, width: int) -> Table:
        """Return a line for each figure: its name, value now, and past."""
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True)
        names = [one_line(f"{name}  {unit}") for name, unit in self._past]
        room = max(8, width - min(40, max(map(len, names), default=0)) - 26)
        for name, past in zip(names, self._past.values(), strict=True):
            recent = list(past)[-room:]
            now, most = (f"{value:,.1f}".removesuffix(".0") for value in (recent[-1], max(recent)))
            table.add_row(name, now, f"{sparkline(recent)}  most {most}", style="cyan")
        return table


def sparkline(values: list[float]) -> str:
    """Return a character for each value, by its share of the largest."""
    most = max(values, default=0.0)
    steps = len(_LEVELS) - 1
    return "".join(_LEVELS[round(value / most * steps) if most > 0 else 0] for value in values)


def _figures(
    before: ClusterStatus, status: ClusterStatus, seconds: float
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the figures to plot, by name and unit, for each service and the gateway."""
    by_service: dict[str, list[ServiceRow]] = {}
    for row in status.services:
        by_service.setdefault(row.document.service, []).append(row)
    for name, rows in by_service.items():
        states = [row.state for row in rows if row.state]
        yield (name, "tokens/s"), sum(state.tokens_per_second for state in states)
        yield (name, "requests"), sum(state.running + state.waiting for state in states)
    if before.gateway and status.gateway and _comparable(before, status) and seconds > 0:
        answered = status.gateway.served - before.gateway.served
        yield ("gateway", "answers/s"), max(0.0, answered / seconds)


def _comparable(before: ClusterStatus, status: ClusterStatus) -> bool:
    """Whether the gateways' counts in two states are from the same hosts."""
    return before.other_gateways.keys() == status.other_gateways.keys()


def changes_between(before: ClusterStatus, status: ClusterStatus) -> list[str]:
    """Return what changed between two states, a sentence each."""
    changes = []
    earlier = {row.name: row for row in before.services}
    for row in status.services:
        was = earlier.pop(row.name, None)
        if was is None:
            changes.append(f"{row.name} is declared on {row.host}")
        elif was.condition != row.condition:
            changes.append(f"{row.name}: {was.condition} → {row.condition}")
        if was and was.state and row.state and was.state.restarts < row.state.restarts:
            changes.append(f"{row.name} was restarted: {row.state.last_failure}")
    changes += [f"{name} is no longer declared" for name in earlier]
    if before.gateway and status.gateway and _comparable(before, status):
        failed = status.gateway.failed - before.gateway.failed
        changes += [f"gateway: {failed} requests failed"] if failed > 0 else []
    # Drift of any host is seen only while all engines answer, so then it neither came nor went.
    hosts = (*before.hosts, *status.hosts)
    unseen = {f"{row.name}: {text}" for row in hosts for text in row.drift}
    if all(row.engine for row in hosts):
        unseen = set()
    # Of services, the conditions above say it already.
    was_wrong, is_wrong = (
        {
            _DURATION.sub("", each): each
            for each in look.problems
            if not each.startswith("service ") and each not in unseen
        }
        for look in (before, status)
    )
    changes += [text for key, text in is_wrong.items() if key not in was_wrong]
    changes += [f"no longer: {text}" for key, text in was_wrong.items() if key not in is_wrong]
    return changes
