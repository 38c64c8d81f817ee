"""How long to wait before trying again: doubling, up to a limit."""

from __future__ import annotations


class Backoff:
    """Seconds between attempts: `first`, twice that, ... never over `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def failed(self) -> float:
        """Count a failure; the wait before the next attempt."""
        delay = min(self._first * 2.0 ** min(self._failures, 32), self._longest)
        self._failures += 1
        return delay

    def succeeded(self) -> None:
        self._failures = 0
