"""Ctrl-C once and twice, with real signals."""

from __future__ import annotations

import signal
import threading

from clusterctl.engine.events import Event, Note
from clusterctl.engine.interrupt import interruptible


def test_the_first_asks_to_stop_and_says_so_the_second_leaves() -> None:
    told, events, left = threading.Event(), [], []

    def sink(event: Event) -> None:
        events.append(event)
        told.set()

    with interruptible(sink, leave=lambda: left.append(True)) as cancelled:
        signal.raise_signal(signal.SIGINT)
        assert cancelled.is_set()
        assert left == []
        signal.raise_signal(signal.SIGINT)
    assert left == [True]
    assert told.wait(10)
    assert isinstance(events[0], Note)


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with interruptible(lambda _: None):
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
