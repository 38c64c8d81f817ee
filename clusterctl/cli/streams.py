"""The process's stdin, stdout and stderr: handles streams that are closed or cannot be written."""

from __future__ import annotations

import functools
import io
import os
import select
import signal
import sys
import termios
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO, cast

from clusterctl.errors import Interrupted, RequirementsNotMet
from clusterctl.reporting.escaping import Escaping


@functools.cache
def signals() -> int:
    """Return a descriptor that is readable once Ctrl-C was pressed, for the rest of the run.

    Python handles signals only in the main thread. Most prompts are shown by other threads, which
    would otherwise wait for an answer until a second Ctrl-C. The first call must be in the main
    thread.
    """
    came, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    return came


def ask_unseen(question: str) -> str | None:
    """Return the text typed after `question`; None at the end of input, or without a terminal.

    Raises Interrupted at Ctrl-C, and at once if it was pressed before.
    """
    _wait_for(signals(), 0)  # Ctrl-C may have been pressed during an earlier question
    try:
        with ExitStack() as opened:
            try:  # stdout and stderr may be files
                keyboard = screen = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
                opened.callback(os.close, keyboard)
            except OSError:
                keyboard, screen = sys.stdin.fileno(), sys.stderr.fileno()
            before = termios.tcgetattr(keyboard)
            opened.callback(termios.tcsetattr, keyboard, termios.TCSAFLUSH, before)
            silent = before.copy()
            silent[3] &= ~termios.ECHO
            termios.tcsetattr(keyboard, termios.TCSAFLUSH, silent)
            os.write(screen, question.encode())
            try:
                return _line(keyboard)
            finally:
                os.write(screen, b"\n")
    except (OSError, termios.error):
        return None


def _wait_for(descriptor: int, seconds: float | None) -> None:
    """Wait until the descriptor is readable. Raises Interrupted at Ctrl-C."""
    ready, _, _ = select.select([descriptor, signals()], [], [], seconds)
    if signals() in ready:
        raise Interrupted("interrupted while asking for a password")


def _line(keyboard: int) -> str | None:
    typed = b""
    while not typed.endswith(b"\n"):
        _wait_for(keyboard, None)
        piece = os.read(keyboard, 4096)
        if not piece:
            return typed.decode(errors="replace") or None
        typed += piece
    return typed.decode(errors="replace").removesuffix("\n")


if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(RequirementsNotMet):
    """The result of a run could not be written to stdout."""


class _Results(io.FileIO):
    """stdout. A failed write raises OutputLost, since the reader must notice missing results."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputLost(
                f"stdout cannot be written: {error.strerror}",
                hint="write stdout to a disk with free space, and run the same command again",
            ) from error


class _Notices(io.FileIO):
    """stderr. A failed write is ignored: progress that cannot be shown must not stop the work."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare() -> None:
    """Replace closed standard streams by /dev/null. Call this before anything is opened: a file or
    connection that got a closed stream's number would be used as that stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a number, open to the end
    sys.stdout = _text(_Results(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Notices(2, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    """Return a stream like `before` that escapes what a terminal would interpret. Characters from
    hosts that are not in the terminal's encoding become `?` instead of an error."""
    stream = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before else "utf-8",
        errors="replace",
        line_buffering=raw.fileno() == 2 or raw.isatty(),
        write_through=isinstance(before, io.TextIOWrapper) and before.write_through,
    )
    return cast("TextIO", Escaping(stream))


def drop_stdout() -> None:
    """Discard buffered output: Python would try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
