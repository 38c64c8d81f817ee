"""Ctrl-C as the design has it: the first finishes what runs, the second leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from clusterctl.engine.events import EventSink, Note
from clusterctl.errors import Interrupted

FIRST = "finishing what is under way; press Ctrl-C again to leave at once"


def _leave() -> None:
    # Threads that wait for a host would hold up an ordinary exit; the kernel closes the SSH
    # connections, and with them the lock.
    os._exit(Interrupted.exit_code)


@contextmanager
def interruptible(
    sink: EventSink, *, leave: Callable[[], None] = _leave
) -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second calls `leave`.

    `sink` is called from another thread: wrap it by `events.one_at_a_time`. For the main
    thread only, to which signal handlers belong. The handlers of before are put back.
    """
    cancelled = threading.Event()

    def handle(_signum: int, _frame: FrameType | None) -> None:
        if cancelled.is_set():
            leave()
            return
        cancelled.set()
        # The main thread may hold the sink's lock right now: never call it from a handler.
        threading.Thread(target=sink, args=(Note(FIRST),), daemon=True).start()

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancelled
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
