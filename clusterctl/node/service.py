"""Keeps one declared service running: wait, start, watch, restart the whole group, stop.

vLLM is fail-stop: when one rank dies, all of it has to start again, on nodes that are there.
So a service whose ground is gone is ended at once, rather than left to the timeouts of NCCL.

    waiting -> starting -> loading -> ready
       ^          |           |         |  \\
       |          v           v         v   stalled
       +---- backing-off, failed <------+---+
    any of them -> stopping -> waiting (the document changed) or forgotten (it was removed)
"""

from __future__ import annotations

import time
from typing import List, Optional

from clusterctl.node.admission import Ground, living, ranks, who_left, why_wait
from clusterctl.node.attempt import Attempt
from clusterctl.node.backoff import Backoff
from clusterctl.node.documents import Rank, ServiceDocument, ServiceState
from clusterctl.node.journal import Journal
from clusterctl.node.paths import NodePaths
from clusterctl.node.ray_watch import Snapshot
from clusterctl.node.timing import Timing

UNPROVABLE = "it listens, and answers no request that would prove it"


class Service:
    """Driven by `tick`, which never blocks. Times named `now` are monotonic seconds."""

    def __init__(
        self, document: ServiceDocument, paths: NodePaths, timing: Timing, journal: Journal
    ) -> None:
        self._shown = document
        self._paths = paths
        self._timing = timing
        self._journal = journal
        self._backoff = Backoff(timing.service_backoff_first, timing.service_backoff_max)
        self._attempt: Optional[Attempt] = None
        self._retry_at: Optional[float] = None
        self._kill_at = 0.0
        self._freed = 0.0
        self._attempts = 0
        self._starts = 0
        self._ready_seconds = 0.0
        self._last_error: List[str] = []
        self._last_failure = ""
        self._last_failure_time = 0.0
        self._phase = ""
        self._detail = ""
        self._since = 0.0
        self._snapshot: Optional[Snapshot] = None
        self.forgotten = False
        """Removed and stopped: nothing is left to do or to show."""
        self._turn("waiting", "for its turn")

    def tick(self, now: float, wanted: Optional[ServiceDocument], ground: Ground) -> None:
        """Look, and do what is due. `wanted` is None once the document is removed."""
        self._snapshot = ground.snapshot
        attempt = self._attempt
        if attempt is None:
            self._without_process(now, wanted, ground)
        elif self._phase == "stopping":
            self.finish_stop(now)
        elif wanted is None or wanted.fingerprint != attempt.document.fingerprint:
            self._begin_stop(now, attempt, "it was changed" if wanted else "it was removed")
        elif not ground.ray_up:
            self._lose_ground(attempt, "Ray is not running on this host")
        else:
            self._shown = wanted
            self._look(now, attempt)

    def state(self) -> ServiceState:
        """As it goes into state.json."""
        attempt = self._attempt
        reading = attempt.reading if attempt else None
        return ServiceState(
            name=self._shown.name,
            state=self._phase,
            since=self._since,
            fingerprint=self._shown.fingerprint,
            detail=self._detail,
            pid=attempt.pid if attempt else 0,
            attempts=self._attempts,
            restarts=max(0, self._starts - 1),
            stage=attempt.progress() if attempt and self._phase in _LOADING else "",
            ready_seconds=self._ready_seconds,
            task=reading.task if reading else "",
            running=reading.running if reading else 0.0,
            waiting=reading.waiting if reading else 0.0,
            tokens_per_second=reading.tokens_per_second if reading else 0.0,
            kv_cache_use=reading.kv_cache_use if reading else 0.0,
            ranks=self._ranks(),
            last_error=self._last_error,
            silence=self._silence(),
            last_failure=self._last_failure,
            last_failure_time=self._last_failure_time,
        )

    def stop(self, now: float) -> None:
        """The supervisor ends: stop gracefully; call `finish_stop` until `stopped`."""
        if self._attempt and self._phase != "stopping":
            self._begin_stop(now, self._attempt, "the supervisor stops")

    @property
    def stopped(self) -> bool:
        return self._attempt is None

    def _without_process(
        self, now: float, wanted: Optional[ServiceDocument], ground: Ground
    ) -> None:
        if wanted is None:
            self._turn("stopped", "it was removed")
            self.forgotten = True
            return
        if wanted.fingerprint != self._shown.fingerprint:
            self._start_over(wanted)
        if self._phase != "waiting" and not self._is_due(now):
            return
        reason = why_wait(wanted, ground, self._freed)
        if reason:
            self._turn("waiting", reason)
        else:
            self._start(wanted, ground)

    def _start_over(self, document: ServiceDocument) -> None:
        """Another document: failures of the old one say nothing about it."""
        self._shown = document
        self._attempts = self._starts = 0
        self._last_error = []
        self._last_failure, self._last_failure_time = "", 0.0
        self._backoff.succeeded()
        self._turn("waiting", "it was changed")

    def _is_due(self, now: float) -> bool:
        return self._retry_at is not None and now >= self._retry_at

    def _start(self, document: ServiceDocument, ground: Ground) -> None:
        self._shown = document
        self._attempts += 1
        self._starts += 1
        nodes = living(ground.snapshot)
        try:
            self._attempt = Attempt(document, ground.env, self._paths, self._timing, nodes)
        except OSError as error:
            self._give_up(f"{document.argv[0]} cannot be started: {error}", [str(error)])
            return
        self._turn("starting", f"attempt {self._attempts}, pid {self._attempt.pid}")

    def _look(self, now: float, attempt: Attempt) -> None:
        reading = attempt.reading
        left = who_left(attempt.nodes, self._snapshot)
        ended_rank = attempt.ended_rank(self._snapshot, now, self._timing.rank_patience)
        if attempt.ended:
            self._after_end(now, attempt)
        elif left:
            self._lose_ground(attempt, left)
        elif ended_rank:
            self._end_failed(now, attempt, ended_rank)
        elif reading.silence and now - reading.silence.since >= self._shown.stall_timeout:
            self._turn("stalled", reading.silence.told(now))
            self._end_failed(now, attempt, f"stalled: {reading.silence.told(now)}")
        elif reading.ready:
            self._be_ready(now, attempt)
        elif reading.unprovable:
            self._drop(attempt)
            self._give_up(UNPROVABLE, [f"{UNPROVABLE}: {reading.unprovable}"])
        elif now - attempt.started > attempt.document.ready_timeout:
            limit = f"not ready within {attempt.document.ready_timeout:g} s"
            self._end_failed(now, attempt, f"{limit} ({reading.error})")
        elif attempt.progress():
            self._turn("loading", attempt.stage_line or reading.error)

    def _be_ready(self, now: float, attempt: Attempt) -> None:
        if not attempt.was_ready:
            attempt.was_ready = True
            self._ready_seconds = now - attempt.started
            self._attempts = 0
            self._last_error = []
            answers = ", ".join(filter(None, (attempt.reading.task, attempt.reading.answer)))
            self._turn("ready", f"after {self._ready_seconds:.1f} s: answers {answers}")
        if now - attempt.started - self._ready_seconds > self._timing.ray_steady:
            self._backoff.succeeded()

    def _after_end(self, now: float, attempt: Attempt) -> None:
        how = attempt.how_it_ended()
        if attempt.refused_its_arguments():
            lines = attempt.last_lines()
            self._drop(attempt)
            self._give_up(f"vLLM refused its arguments ({how})", lines)
        else:
            self._end_failed(now, attempt, how)

    def _end_failed(self, now: float, attempt: Attempt, why: str) -> None:
        """End all of it, and try again after a while."""
        self._drop(attempt)
        self._last_error = attempt.last_lines()
        delay = self._backoff.failed()
        self._retry_at = now + delay
        beyond = self._attempts >= self._timing.attempts_until_failed
        self._turn("failed" if beyond else "backing-off", f"{why}; again in {delay:g} s")
        self._remember(why)

    def _lose_ground(self, attempt: Attempt, why: str) -> None:
        """A node it stands on is gone: not its own failure, so no backoff."""
        self._drop(attempt)
        self._last_error = attempt.last_lines()
        self._turn("waiting", why)
        self._remember(why)

    def _give_up(self, why: str, lines: List[str]) -> None:
        self._last_error = lines
        self._retry_at = None
        self._turn("failed", f"{why}; it is not tried again until it is changed")
        self._remember(why)

    def _remember(self, failure: str) -> None:
        self._last_failure, self._last_failure_time = failure, time.time()

    def _drop(self, attempt: Attempt) -> None:
        attempt.kill()
        self._attempt = None
        self._freed = time.monotonic()

    def _begin_stop(self, now: float, attempt: Attempt, why: str) -> None:
        patience = min(attempt.document.shutdown_timeout + 5.0, self._timing.stop_limit)
        self._kill_at = now + patience
        attempt.terminate()
        self._turn("stopping", f"{why}; at most {patience:g} s")

    def finish_stop(self, now: float) -> None:
        """One look at a service that stops: what is left after its time is killed."""
        attempt = self._attempt
        if attempt is None or (not attempt.ended and now < self._kill_at):
            return
        attempt.kill()
        if attempt.gone:
            self._attempt = None
            self._freed = time.monotonic()
            self._turn("waiting", "stopped")

    def _silence(self) -> str:
        """Told from the second look on that saw no sign of life."""
        silence = self._attempt.reading.silence if self._attempt else None
        if silence is None or self._phase != "ready":
            return ""
        now = time.monotonic()
        return silence.told(now) if now - silence.since >= self._timing.silence_shown else ""

    def _ranks(self) -> List[Rank]:
        if self._attempt is None or self._snapshot is None:
            return []
        workers = self._attempt.owned(self._snapshot)
        return ranks(workers, self._snapshot.nodes, self._shown.tensor_parallel)

    def _turn(self, phase: str, detail: str) -> None:
        if phase != self._phase:
            self._since = time.time()
            self._journal.write(self._shown.name, phase, detail)
        elif detail != self._detail and phase == "waiting":
            self._journal.write(self._shown.name, phase, detail)
        self._phase, self._detail = phase, detail


_LOADING = ("starting", "loading")
