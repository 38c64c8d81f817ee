"""Progress on stderr during a run: live rows on a terminal, plain lines elsewhere.

Without a terminal, a step gets one line when it ends, shared by hosts that did the same; a stage
that changes nothing gets none.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rich.console import Console as RichConsole
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clusterctl.engine.events import (
    Event,
    HostSetAside,
    Note,
    StageFinished,
    StageStarted,
    StepBroke,
    StepFinished,
    StepProgress,
    StepStarted,
)
from clusterctl.reporting.escaping import Escaping, drawing_on, one_line
from clusterctl.reporting.text import below_itself, count, duration, line_width

PLAIN_EVERY = 10.0  # Seconds between two progress lines of one host without a terminal

STILL_EVERY = 30.0  # Seconds after which a silent step gets a line that it still runs

NAMED = 2  # Paths or packages of a change that its line names; the log file has them all

_KEPT_TOGETHER = "\N{NO-BREAK SPACE}"  # Between a number and its unit, until the line is wrapped

_log = logging.getLogger("clusterctl.run")


@dataclass(frozen=True)
class _Ended:
    host: str
    seconds: float


@dataclass
class _Running:
    title: str
    text: str = ""
    since: float = field(default_factory=time.monotonic)
    printed: float = 0.0


class Progress:
    """An EventSink that shows events to the user. Thread-safe. Times are in seconds."""

    def __init__(
        self, stream: IO[str], *, quiet: bool = False, still_every: float = STILL_EVERY
    ) -> None:
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._still_every = still_every
        # Replaced, never modified: rich draws the rows in a thread that holds its own lock, and
        # must not wait for ours, whose holder may be waiting for rich's.
        self._running: Mapping[tuple[str, str], _Running] = {}
        self._changed = 0
        self._stage = ""  # Title of the stage that has no line yet
        self._ended_alike: dict[str, list[_Ended]] = {}
        self._console = RichConsole(
            file=drawing_on(stream),
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
        self._live = Live(
            console=self._console,
            refresh_per_second=8,
            transient=True,
            # A result that goes to a file or a pipe must not be drawn above the rows on stderr.
            redirect_stdout=sys.stdout.isatty(),
            get_renderable=self._table,
        )
        self._interactive = self._console.is_terminal and os.environ.get("TERM") != "dumb"
        self._quiet = quiet

    def __enter__(self) -> Self:
        if self._quiet:
            return self
        if self._interactive:
            self._draw()
        else:
            threading.Thread(target=self._say_what_still_runs, name="still", daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._quiet:
            return
        with self._lock:
            self._show_ended()
        if self._interactive:
            self._live.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop drawing on the terminal while the user is prompted."""
        live = self._live.is_started
        if live:
            self._live.stop()
        try:
            yield
        finally:
            if live:
                self._draw()

    def _draw(self) -> None:
        """Show the live rows. Rich prints other output above them, and would interpret colours and
        links in it."""
        self._live.start()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, FileProxy):
                setattr(sys, name, Escaping(stream))

    def __call__(self, event: Event) -> None:
        _log.info("%s", event)
        if not self._quiet:
            with self._lock:
                self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case StageStarted():
                self._stage = event.title
                self._changed = 0
                if self._interactive:
                    self._title_stage()
            case StepStarted():
                self._title_stage()
                self._row(event, _Running(abridged(event.change.summary)))
            case StepProgress():
                row = self._running.get((event.host, event.step))
                row = row or self._row(event, _Running(event.step))
                row.text = event.text
                if not self._interactive and time.monotonic() - row.printed >= PLAIN_EVERY:
                    row.printed = time.monotonic()
                    self._line(event.host, "·", "dim", event.text)
            case StepFinished():
                self._step_finished(event)
            case StepBroke():
                self._no_row(event)
                self._line(event.host, "✗", "red", f"{event.step}: {event.error.summary}")
            case HostSetAside():
                self._line(event.host, "-", "yellow", f"set aside: {event.reason}")
            case StageFinished():
                self._show_ended()
                if self._interactive and not self._changed:
                    self._console.print(Text("  nothing to change", style="dim"))
            case Note():
                self._line(event.host or "", "·", "dim", event.text)

    def _title_stage(self) -> None:
        if self._stage:
            self._console.print(Text(self._stage, style="bold"))
            self._stage = ""

    def _step_finished(self, event: StepFinished) -> None:
        ended = self._no_row(event)
        if event.outcome == "unchanged":
            return
        self._changed += 1
        title = ended.title if ended else event.step
        if self._interactive:
            self._line(event.host, "✓", "green", f"{title}  {_kept_together(event.seconds)}")
        else:
            alike = self._ended_alike.setdefault(title, [])
            alike.append(_Ended(event.host, event.seconds))
            if not self._running:  # One host after the other, as in a rolling change
                self._show_ended()

    def _show_ended(self) -> None:
        """Print a line for each step that ended since the last call, with all hosts that ran it."""
        ended_alike, self._ended_alike = self._ended_alike, {}
        for title, ended in ended_alike.items():
            hosts = abridged(", ".join(each.host for each in ended))
            slowest = max(each.seconds for each in ended)
            self._line(hosts, "✓", "green", f"{title}  {_kept_together(slowest)}")

    def _row(self, event: StepStarted | StepProgress, row: _Running) -> _Running:
        self._running = {**self._running, (event.host, event.step): row}
        return row

    def _no_row(self, event: StepFinished | StepBroke) -> _Running | None:
        row = self._running.get((event.host, event.step))
        self._running = {key: each for key, each in self._running.items() if each is not row}
        return row

    def _say_what_still_runs(self) -> None:
        """Print a line for long steps, which without live rows would look like a hang."""
        while not self._ended.wait(min(1.0, self._still_every)):
            with self._lock:
                for (host, _), row in self._running.items():
                    now = time.monotonic()
                    if now - max(row.printed, row.since) >= self._still_every:
                        row.printed = now
                        text = f"still: {row.text or row.title} ({now - row.since:.0f} s)"
                        self._line(host, "·", "dim", text)

    def _line(self, host: str, sign: str, style: str, text: str) -> None:
        """Print `text` after its host's name; on a terminal, it wraps inside its column."""
        self._title_stage()
        line = Text("  ")
        line.append(sign, style=style)
        line.append(f" {host}  " if host else " ", style="cyan")
        shown = "\n".join(below_itself(line.plain, text, line_width(self._console.file)))
        line.append(shown[len(line) :].replace(_KEPT_TOGETHER, " "))
        self._console.print(line)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for (host, _), row in self._running.items():
            elapsed = duration(time.monotonic() - row.since)
            sign, name = Text("  ●", style="cyan"), Text(host, style="cyan")
            text = one_line(row.text or row.title)
            table.add_row(sign, name, Text(text), Text(elapsed))
        return table


def abridged(listed: str) -> str:
    """Return "a, b, c, d" as "a, b and 2 more"; short lists stay unchanged."""
    names = listed.split(", ")
    if len(names) <= NAMED + 1:
        return listed
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _kept_together(seconds: float) -> str:
    return duration(seconds).replace(" ", _KEPT_TOGETHER)


def headline(cluster: str, hosts: int, log: Path | None) -> str:
    """Return the first line of a run."""
    where = f"log {log}" if log else "no log: its directory cannot be written"
    return f"cluster {cluster} · {count(hosts, 'host')} · {where}"
