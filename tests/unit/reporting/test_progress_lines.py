"""Progress where there is no terminal: a long step is never silent."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from contextlib import suppress

from clusterctl.engine.events import (
    StageFinished,
    StageStarted,
    StepFinished,
    StepProgress,
    StepStarted,
)
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


def test_a_step_has_a_line_while_it_runs_and_one_at_its_end() -> None:
    stream = _Lines("still: pull [the] image :tada: (")
    with Progress(stream, still_every=0.01) as progress:
        progress(StepStarted("gpu1", "image", Change("pull [the] image :tada:")))
        assert stream.getvalue() == ""
        assert stream.seen.wait(60)
        progress(StepFinished("gpu1", "image", "changed", 12.0))
    assert stream.getvalue().endswith("✓ gpu1  pull [the] image :tada:  12 s\n")


def test_hosts_that_did_the_same_share_a_line_and_idle_stages_have_none() -> None:
    stream = io.StringIO()
    paths = Change("make /a, /b, /c, /d")
    with Progress(stream) as progress:
        progress(StageStarted("Idle", ("gpu1", "gpu2")))
        progress(StepFinished("gpu1", "directories", "unchanged", 0.1))
        progress(StageFinished("Idle", 0.1))

        progress(StageStarted("Directories", ("gpu1", "gpu2")))
        for host in ("gpu1", "gpu2"):
            progress(StepStarted(host, "directories", paths))
        for host, seconds in (("gpu1", 2.0), ("gpu2", 31.0)):
            progress(StepFinished(host, "directories", "changed", seconds))
        progress(StageFinished("Directories", 31.0))
    assert stream.getvalue() == "Directories\n  ✓ gpu1, gpu2  make /a, /b and 2 more  31 s\n"


def test_hosts_that_take_turns_have_their_own_lines_at_once() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress(StageStarted("Serve tiny", ("gpu1", "gpu2")))
        for host in ("gpu1", "gpu2"):
            progress(StepStarted(host, "proof", Change("prove it")))
            progress(StepFinished(host, "proof", "changed", 1.0))
            assert stream.getvalue().endswith(f"✓ {host}  prove it  1.0 s\n")


def test_what_ended_before_an_interruption_is_shown() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress, suppress(KeyboardInterrupt):
        progress(StageStarted("Image", ("gpu1",)))
        progress(StepStarted("gpu1", "image", Change("pull it")))
        progress(StepFinished("gpu1", "image", "changed", 12.0))
        raise KeyboardInterrupt
    assert stream.getvalue() == "Image\n  ✓ gpu1  pull it  12 s\n"


def test_bytes_are_reported_every_ten_seconds_at_most() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress(StepStarted("gpu1", "image", Change("pull it")))
        for percent in range(100):
            progress(StepProgress("gpu1", "image", f"{percent} % of 3 GiB"))
        progress(StepFinished("gpu1", "image", "changed", 12.0))
    assert stream.getvalue() == "  · gpu1  0 % of 3 GiB\n  ✓ gpu1  pull it  12 s\n"


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
    progress(StageFinished("Image", 12.0))
    assert stream.getvalue().endswith("✓ gpu1  pull it  12 s\n")
    assert progress._table().row_count == 0


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with Progress(stream, quiet=True) as progress:
        progress(StepStarted("gpu1", "image", Change("pull it")))
    assert stream.getvalue() == ""
