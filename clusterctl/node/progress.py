"""Tells a working engine from a wedged one by what it counts. Pure."""

from __future__ import annotations

from typing import Optional

from clusterctl.node.endpoint import Metrics


class Progress:
    """Fed with metrics as they are scraped. Times are monotonic seconds."""

    def __init__(self, stall: float) -> None:
        """`stall`: seconds with requests and without a new token that count as a stall."""
        self._stall = stall
        self._last: Optional[Metrics] = None
        self._last_time = 0.0
        self._moved_at = 0.0
        self.moved = False
        """The counter changed between the last two scrapes."""
        self.tokens_per_second = 0.0
        self.idle = False
        """No request there, and the counter still."""

    def update(self, now: float, metrics: Metrics) -> None:
        last, span = self._last, now - self._last_time
        busy = metrics.running > 0 or metrics.waiting > 0
        # A counter that went back is a new engine: that is movement too.
        self.moved = last is not None and metrics.tokens != last.tokens
        if last is not None and span > 0:
            self.tokens_per_second = max(0.0, metrics.tokens - last.tokens) / span
        if last is None or self.moved or not busy:
            self._moved_at = now
        self.idle = not busy and not self.moved
        self._last, self._last_time = metrics, now

    def stalled(self, now: float) -> str:
        """Why this counts as a stall, or nothing."""
        if self._last is None or now - self._moved_at < self._stall:
            return ""
        return (
            f"{self._last.running:g} requests running, {self._last.waiting:g} waiting, "
            f"and no token for {now - self._moved_at:.0f} s"
        )
