"""Tells a working engine from a wedged one by what it counts and answers. Pure.

A sign of life is a canary's answer, or any movement in what the engine itself counts: tokens made,
tokens read, and how full the KV cache is. The last one moves with every chunk of a long prompt, in
which no token is made for as long as the prompt takes, so that a long prefill is no silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from clusterctl.node.endpoint import Metrics


@dataclass(frozen=True)
class Silence:
    """No sign of life since `since` (monotonic seconds), while something was asked."""

    since: float
    what: str  # What is missing: `no token`, `no answer`
    asked: str  # What was asked: the requests there, or the check that failed and how

    def told(self, now: float) -> str:
        return f"{self.what} for {now - self.since:.0f} s ({self.asked})"


class Progress:
    """Fed with what the endpoint says, as it says it. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        """Begins with an engine that has just answered."""
        self._last: Optional[Metrics] = None
        self._read_at = now
        self._sign_at = now
        self._asked_at: Optional[float] = None
        """Since when requests are there; None while there are none."""
        self._unread = ""
        self._unanswered = ""
        self.tokens_per_second = 0.0

    def update(self, now: float, metrics: Metrics) -> None:
        """The metrics, as they were read now."""
        last, span = self._last, now - self._read_at
        if last is not None and span > 0:
            self.tokens_per_second = max(0.0, metrics.tokens - last.tokens) / span
        # A counter that went back is a new engine: that is movement too.
        if last is not None and metrics.signs != last.signs:
            self.answered(now)
        if metrics.running == 0 and metrics.waiting == 0:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now
        self._last, self._read_at, self._unread = metrics, now, ""

    def unread(self, error: str) -> None:
        """The metrics could not be read."""
        self._unread = error

    def answered(self, now: float) -> None:
        """The canary was answered."""
        self._sign_at, self._unanswered = now, ""

    def unanswered(self, error: str) -> None:
        """The canary was not answered."""
        self._unanswered = error

    def wants_canary(self, now: float, every: float) -> bool:
        """Nobody asks for anything, and there was no sign for that long."""
        idle = self._asked_at is None and not self._unread
        return idle and now - self._sign_at >= every

    def silence(self) -> Optional[Silence]:
        """Since when a sign of life is missing, and what was asked of the engine meanwhile; None
        while it has nothing to do, or does it."""
        if self._unanswered:
            return Silence(self._sign_at, "no answer", self._unanswered)
        if self._unread:
            return Silence(max(self._sign_at, self._read_at), "no answer", self._unread)
        if self._asked_at is None or self._last is None:
            return None
        load = f"{self._last.running:g} requests running, {self._last.waiting:g} waiting"
        return Silence(max(self._sign_at, self._asked_at), "no token", load)
