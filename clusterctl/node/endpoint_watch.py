"""Watch one attempt of a service from outside: whether it is ready, and shows signs of life.

Runs in a thread of its own, since a request to a hung engine blocks.

A sign of life is an answered canary, or any change in the engine's own metrics: tokens generated,
tokens read, and KV cache in use. The last one changes with every chunk of a long prompt, during
which no token is generated, so that a long prefill does not look like a stall.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Callable, Optional

from clusterctl.node.endpoint import EndpointError, LocalApi, Metrics, NothingToAsk
from clusterctl.node.timing import Timing


@dataclass(frozen=True)
class Silence:
    """A sign of life is due and has been missing since `since` (monotonic seconds)."""

    since: float
    what: str  # What is missing: `no token`, `no answer`
    asked: str  # The pending requests, or the failed check with its error

    def told(self, now: float) -> str:
        return f"{self.what} for {now - self.since:.0f} s ({self.asked})"


@dataclass(frozen=True)
class Reading:
    """What is known now. Replaced as a whole, so that another thread may read it at any time."""

    ready: bool = False
    stage: str = ""  # `listening` or `warm-up`, once the endpoint itself shows it
    running: float = 0.0
    waiting: float = 0.0
    tokens_per_second: float = 0.0
    kv_cache_use: float = 0.0
    # Set while a sign of life is due. `Service` decides how long is too long.
    silence: Optional[Silence] = None
    error: str = ""  # Error of the last failed check
    task: str = ""  # Task that the model serves: `embeddings`; empty until ready
    answer: str = ""  # Summary of the proof's answer: `1024 numbers`
    unprovable: str = ""  # Errors of a working server that serves no known task


class EndpointWatch:
    """Checks a service until it is ready, then keeps watching it."""

    def __init__(self, endpoint: LocalApi, timing: Timing) -> None:
        self._endpoint = endpoint
        self._timing = timing
        self._ended = threading.Event()
        self.reading = Reading()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Make the thread end after its current request."""
        self._ended.set()

    def _run(self) -> None:
        # `Service` enforces the deadline of the whole attempt.
        timing = self._timing
        checks: tuple[tuple[str, Callable[[], None]], ...] = (
            ("", self._check_port),
            ("listening", lambda: self._endpoint.check_health(timing.http_timeout)),
            ("listening", lambda: self._endpoint.check_model(timing.http_timeout)),
            ("warm-up", lambda: self._endpoint.prove(timing.answer_timeout)),
        )
        if all(self._await(stage, check) for stage, check in checks):
            task = self._endpoint.task
            name = task.name if task else ""
            self._set(ready=True, error="", task=name, answer=self._endpoint.answer)
            self._keep_watching()

    def _await(self, stage: str, check: Callable[[], None]) -> bool:
        """Repeat `check` until it passes. Returns False if the watch was stopped, or if the server
        serves no known task."""
        while not self._ended.is_set():
            self._set(stage=stage)
            try:
                check()
            except NothingToAsk as error:
                self._set(unprovable=str(error))
                return False
            except EndpointError as error:
                self._set(error=str(error))
                self._ended.wait(self._timing.connect_every)
            else:
                return True
        return False

    def _check_port(self) -> None:
        if not self._endpoint.listens(self._timing.http_timeout):
            raise EndpointError("not listening yet")

    def _keep_watching(self) -> None:
        """Read the metrics, and send a canary while no other requests arrive. A canary that failed
        is repeated after the next reading."""
        progress = EngineProgress(time.monotonic())
        while not self._ended.wait(self._timing.scrape_every):
            try:
                metrics = self._endpoint.metrics(self._timing.http_timeout)
                progress.update(time.monotonic(), metrics)
                self._set(
                    running=metrics.running,
                    waiting=metrics.waiting,
                    kv_cache_use=metrics.kv_cache_use,
                    tokens_per_second=progress.tokens_per_second,
                    silence=progress.silence(),
                )
            except EndpointError as error:
                progress.unread(str(error))
            if progress.wants_canary(time.monotonic(), self._timing.canary_every):
                try:
                    self._endpoint.prove(self._timing.canary_timeout)
                    progress.answered(time.monotonic())
                except EndpointError as error:
                    progress.unanswered(str(error))
            self._set(silence=progress.silence())

    def _set(self, **changes: object) -> None:
        self.reading = replace(self.reading, **changes)  # type: ignore[arg-type]


class EngineProgress:
    """Distinguishes a working engine from a hung one by its metrics and answers.

    Does no I/O: the caller passes in the results. Times are monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        """Count `now` as the last sign of life."""
        self._last: Optional[Metrics] = None
        self._read_at = now
        self._sign_at = now
        self._asked_at: Optional[float] = None  # Since when requests are pending; None: none are
        self._unread = ""  # Why the metrics could not be read
        self._unanswered = ""  # Why the canary was not answered
        self.tokens_per_second = 0.0

    def update(self, now: float, metrics: Metrics) -> None:
        """Record metrics read at `now`."""
        last, span = self._last, now - self._read_at
        if last is not None and span > 0:
            self.tokens_per_second = max(0.0, metrics.tokens - last.tokens) / span
        # A counter that decreased belongs to a new engine: that is a sign of life too.
        if last is not None and metrics.signs != last.signs:
            self.answered(now)
        if metrics.running == 0 and metrics.waiting == 0:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now
        self._last, self._read_at, self._unread = metrics, now, ""

    def unread(self, error: str) -> None:
        """Record that the metrics could not be read."""
        self._unread = error

    def answered(self, now: float) -> None:
        """Record that the canary was answered."""
        self._sign_at, self._unanswered = now, ""

    def unanswered(self, error: str) -> None:
        """Record that the canary was not answered."""
        self._unanswered = error

    def wants_canary(self, now: float, every: float) -> bool:
        """Return whether the engine is idle and has shown no sign of life for `every` seconds."""
        idle = self._asked_at is None and not self._unread
        return idle and now - self._sign_at >= every

    def silence(self) -> Optional[Silence]:
        """Return since when a sign of life has been due, or None while none is."""
        if self._unanswered:
            return Silence(self._sign_at, "no answer", self._unanswered)
        if self._unread:
            return Silence(max(self._sign_at, self._read_at), "no answer", self._unread)
        if self._asked_at is None or self._last is None:
            return None
        load = f"{self._last.running:g} requests running, {self._last.waiting:g} waiting"
        return Silence(max(self._sign_at, self._asked_at), "no token", load)
