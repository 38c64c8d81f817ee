"""Progress where there is no terminal: a long step is never silent."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

from clusterctl.engine.events import StepFinished, StepStarted
from clusterctl.engine.step import Change
from clusterctl.reporting.console import Progress


class _Lines(io.StringIO):
    """Tells when a text was written."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self.seen = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._awaited in self.getvalue():
            self.seen.set()
        return count


def test_a_step_is_told_when_it_starts_while_it_runs_and_at_its_end() -> None:
    stream = _Lines("still: pull [the] image :tada: (")
    with Progress(stream, still_every=0.01) as progress:
        progress(StepStarted("gpu1", "image", Change("pull [the] image :tada:")))
        assert stream.getvalue().startswith("  · gpu1  pull [the] image :tada:\n")
        assert stream.seen.wait(60)
        progress(StepFinished("gpu1", "image", "changed", 12.0))
    assert stream.getvalue().endswith("✓ gpu1  pull [the] image :tada:  12 s\n")


class _Drawn(io.StringIO):
    """While a line is written, the rows are drawn in another thread, as rich does."""

    draw: Callable[[], object]

    def write(self, text: str) -> int:
        drawing = threading.Thread(target=self.draw, daemon=True)
        drawing.start()
        drawing.join(10)
        assert not drawing.is_alive(), "who draws waits for who writes, and the other way round"
        return super().write(text)


def test_rows_can_be_drawn_while_a_line_is_written() -> None:
    stream = _Drawn()
    progress = Progress(stream)
    stream.draw = progress._table
    progress(StepStarted("gpu1", "image", Change("pull it")))
    progress(StepFinished("gpu1", "image", "changed", 12.0))
    assert stream.getvalue().endswith("✓ gpu1  pull it  12 s\n")
    assert progress._table().row_count == 0


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with Progress(stream, quiet=True) as progress:
        progress(StepStarted("gpu1", "image", Change("pull it")))
    assert stream.getvalue() == ""
