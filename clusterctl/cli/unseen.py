"""A question whose answer stays off the screen, and which Ctrl-C ends in whatever thread it is."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.errors import Interrupted


@functools.cache
def signals() -> int:
    """A descriptor with something to read once Ctrl-C was pressed, for the rest of the run.

    Python tells the main thread alone of a signal. A question is mostly open in another, which
    would wait for its answer until a second Ctrl-C. Call it first in the main thread.
    """
    came, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    return came


def ask_unseen(question: str) -> str | None:
    """What is typed after `question`; None at the end of input, or where there is no terminal.

    Raises Interrupted at Ctrl-C, and at once where that was pressed before.
    """
    _wait_for(signals(), 0)  # other hosts wait for their turn to ask
    try:
        with _terminal() as (keyboard, screen), _without_echo(keyboard):
            os.write(screen, question.encode())
            try:
                return _line(keyboard)
            finally:
                os.write(screen, b"\n")
    except (OSError, termios.error):
        return None


def _wait_for(descriptor: int, seconds: float | None) -> None:
    """Until there is something to read. Raises Interrupted."""
    ready, _, _ = select.select([descriptor, signals()], [], [], seconds)
    if signals() in ready:
        raise Interrupted("interrupted at the question for a password")


def _line(keyboard: int) -> str | None:
    typed = b""
    while not typed.endswith(b"\n"):
        _wait_for(keyboard, None)
        piece = os.read(keyboard, 4096)
        if not piece:
            return typed.decode(errors="replace") or None
        typed += piece
    return typed.decode(errors="replace").removesuffix("\n")


@contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    """Where is typed and where is asked: stdout and stderr may be files."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        yield sys.stdin.fileno(), sys.stderr.fileno()
        return
    try:
        yield terminal, terminal
    finally:
        os.close(terminal)


@contextmanager
def _without_echo(keyboard: int) -> Iterator[None]:
    before = termios.tcgetattr(keyboard)
    quiet = before.copy()
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSAFLUSH, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
