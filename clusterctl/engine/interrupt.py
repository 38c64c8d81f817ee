"""Ctrl-C: the first lets running changes finish, the second exits at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from clusterctl.engine.events import EventSink, Note
from clusterctl.errors import Interrupted

FIRST = "finishing running changes; press Ctrl-C again to exit at once"


SHOW_CURSOR = "\x1b[?25h"  # DECTCEM set: what `tput cnorm` prints on today's terminals

_kept: list[tuple[int, list[Any]]] = []


def keep_terminal() -> None:
    """Save the terminal's settings before echo is turned off, and restore them at exit.

    A password prompt may be open in another thread when the process ends, and that thread cannot
    turn echo back on.
    """
    with suppress(OSError, ValueError, termios.error):
        descriptor = sys.stdin.fileno()
        if not _kept:
            _kept.append((descriptor, termios.tcgetattr(descriptor)))
            atexit.register(_restore_echo)


def _restore_echo() -> None:
    for descriptor, attributes in _kept:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, attributes)


def _leave() -> None:
    _restore_echo()
    if os.isatty(2):  # the live display hides the cursor; os.write takes no lock
        os.write(2, SHOW_CURSOR.encode() + b"\r\n")
    # An ordinary exit would wait for threads that wait for a host. The kernel closes the SSH
    # connections, which releases the lock.
    os._exit(Interrupted.exit_code)


@contextmanager
def interruptible(
    sink: EventSink, *, leave: Callable[[], None] = _leave
) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second signal calls `leave`.

    `sink` is called from another thread, so wrap it with `events.one_at_a_time`. Call this only in
    the main thread, where signal handlers run. Restores the previous handlers.
    """
    cancelled = threading.Event()

    def handle(_signum: int, _frame: FrameType | None) -> None:
        if cancelled.is_set():
            leave()
            return
        cancelled.set()
        # The main thread may hold the sink's lock now: never call the sink from a handler.
        threading.Thread(target=sink, args=(Note(FIRST),), daemon=True).start()

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancelled
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
