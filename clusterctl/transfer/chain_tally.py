"""What relays say of themselves, as figures over time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from clusterctl.transfer.chain_link import Progress

WINDOW = 5.0  # Seconds over which a rate is taken


class Tally:
    """One host's figures. A relay that is started again counts from 0: the sums go on."""

    def __init__(self, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._host, self._clock = host, clock
        self._lock = threading.Lock()
        self._before = 0
        self._received = self._done = self._total = 0
        self._sources: tuple[str, ...] = ()
        self._waiting: str | None = None
        self._samples: deque[tuple[float, int]] = deque()

    def take(self, done: str, total: str, received: str, sources: str, waiting: str) -> None:
        """The fields of a relay's state."""
        with self._lock:
            self._done, self._total, self._received = int(done), int(total), int(received)
            self._sources = tuple(filter(None, sources.split(",")))
            self._waiting = waiting or None
            self._sample()

    def ended(self) -> None:
        """The relay is gone; the next one begins to count anew."""
        with self._lock:
            self._before += self._received
            self._received = 0
            self._sources, self._waiting = (), "its relay, which is started again"

    def progress(self, *, lost: bool) -> Progress:
        with self._lock:
            self._sample()
            return Progress(
                host=self._host,
                done=self._done,
                total=self._total,
                received=self._before + self._received,
                rate=self._rate(),
                sources=self._sources,
                waiting=None if lost else self._waiting,
                lost=lost,
            )

    def _sample(self) -> None:
        now = self._clock()
        self._samples.append((now, self._before + self._received))
        while self._samples[0][0] < now - WINDOW:
            self._samples.popleft()

    def _rate(self) -> float:
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end - start > 0.1 else 0.0
