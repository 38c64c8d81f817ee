"""Watches one attempt of a service from outside: is it ready, and does it show signs of life?

Runs in a thread of its own, since a hung engine answers nothing for as long as it is asked.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Callable, Optional

from clusterctl.node.endpoint import Endpoint, EndpointError, NothingToAsk
from clusterctl.node.progress import Progress, Silence
from clusterctl.node.timing import Timing


@dataclass(frozen=True)
class Reading:
    """What is known now. Replaced whole, so that another thread may read it at any time."""

    ready: bool = False
    stage: str = ""  # `listening` or `warm-up`, once the endpoint itself tells
    running: float = 0.0
    waiting: float = 0.0
    tokens_per_second: float = 0.0
    kv_cache_use: float = 0.0
    # Set while it owes a sign of life; how long is too long, the service decides.
    silence: Optional[Silence] = None
    error: str = ""  # What the last check that failed said
    task: str = ""  # What the model serves: `embeddings`; known once it is ready
    answer: str = ""  # The proof of it, in words: `1024 numbers`
    unprovable: str = ""  # It works, and nothing that it serves is known here; what it said


class EndpointWatch:
    """Climbs to readiness, TCP, /health, /v1/models, a real answer; then keeps looking."""

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        self._endpoint = endpoint
        self._timing = timing
        self._ended = threading.Event()
        self.reading = Reading()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """The thread ends after the call it is in."""
        self._ended.set()

    def _run(self) -> None:
        if self._climb():
            task = self._endpoint.task
            name = task.name if task else ""
            self._set(ready=True, error="", task=name, answer=self._endpoint.answer)
            self._stay()

    def _climb(self) -> bool:
        """True once ready; False when stopped before that, or nothing can prove it. The attempt's
        own deadline is kept by the service."""
        timing = self._timing
        rungs: tuple[tuple[str, Callable[[], None]], ...] = (
            ("", self._check_port),
            ("listening", lambda: self._endpoint.check_health(timing.http_timeout)),
            ("listening", lambda: self._endpoint.check_model(timing.http_timeout)),
            ("warm-up", lambda: self._endpoint.prove(timing.answer_timeout)),
        )
        return all(self._climb_one(stage, check) for stage, check in rungs)

    def _climb_one(self, stage: str, check: Callable[[], None]) -> bool:
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

    def _stay(self) -> None:
        """Read the metrics; ask for an answer where nobody else asks. A canary that failed is sent
        again after the next reading."""
        progress = Progress(time.monotonic())
        while not self._ended.wait(self._timing.scrape_every):
            try:
                self._scrape(progress)
            except EndpointError as error:
                progress.unread(str(error))
            if progress.wants_canary(time.monotonic(), self._timing.canary_every):
                try:
                    self._endpoint.prove(self._timing.canary_timeout)
                    progress.answered(time.monotonic())
                except EndpointError as error:
                    progress.unanswered(str(error))
            self._set(silence=progress.silence())

    def _scrape(self, progress: Progress) -> None:
        metrics = self._endpoint.metrics(self._timing.http_timeout)
        progress.update(time.monotonic(), metrics)
        self._set(
            running=metrics.running,
            waiting=metrics.waiting,
            kv_cache_use=metrics.kv_cache_use,
            tokens_per_second=progress.tokens_per_second,
            silence=progress.silence(),
        )

    def _set(self, **changes: object) -> None:
        self.reading = replace(self.reading, **changes)  # type: ignore[arg-type]
