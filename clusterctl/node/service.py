r"""Keeps one declared service running: wait, start, watch, restart all its ranks, stop.

vLLM is fail-stop: when one rank dies, all have to start again, on nodes that are alive. So a
service that has lost a node is ended at once instead of waiting for NCCL's timeouts.

    waiting -> starting -> loading -> ready
       ^          |           |         |  \
       |          v           v         v   stalled
       +---- backing-off, failed <------+---+
    any of them -> stopping -> waiting (the document changed) or forgotten (it was removed)
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence

from clusterctl.kinds.known import kind_named
from clusterctl.node.adapters import takes_adapters
from clusterctl.node.attempt import Attempt
from clusterctl.node.children import Child, session_members
from clusterctl.node.contract import breaches, free_gpus
from clusterctl.node.documents import (
    IN_TURN,
    ExpectedNode,
    Rank,
    ServiceDocument,
    ServiceState,
    SleepState,
)
from clusterctl.node.endpoint import Reading
from clusterctl.node.evidence import HangEvidence
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.import_ahead import ImportAhead
from clusterctl.node.prestart import FAILED, prestart_arguments
from clusterctl.node.rank_placement import gpu_share
from clusterctl.node.ranks import ranks
from clusterctl.node.ray_watch import Snapshot, own_argv
from clusterctl.node.secret_files import SecretUnusable, read_secret
from clusterctl.node.sleeping import SLEEP, WAKE
from clusterctl.node.timing import Backoff, Timing
from clusterctl.node.turns import Engine, Turn

UNPROVABLE = "it listens, and answers no request that would prove it"

_LOADING = ("starting", "loading")

_RAY_GONE = "Ray is not running on this host"


@dataclass(frozen=True)
class RayConditions:
    """The state of Ray that a service needs to run, at one moment."""

    expected: Sequence[ExpectedNode]
    snapshot: Optional[Snapshot]  # None if the last snapshot is too old to prove anything
    ray_up: bool  # On this host
    env: Mapping[str, str]
    taken: float = 0.0  # Monotonic seconds of the snapshot
    node_ip: str = ""  # Of this host
    rejoined: FrozenSet[str] = frozenset()  # Nodes that the GCS may not reach yet
    store_ports: range = range(0)  # NodeDocument.store_ports
    measuring: str = ""  # Another service of this host that starts on a share of a GPU
    turn: Turn = field(default_factory=Turn)


def why_wait(document: ServiceDocument, conditions: RayConditions, not_before: float) -> str:
    """Return why the service cannot start yet, or "".

    A snapshot from before `not_before` (monotonic seconds) still counts GPUs of the last attempt.
    """
    if not conditions.ray_up:
        return "for Ray on this host"
    snapshot = conditions.snapshot
    if snapshot is None or conditions.taken < not_before:
        return "for Ray to report its nodes"
    expected, nodes = conditions.expected, snapshot.nodes
    if document.node_ips:  # The other nodes do not matter to this replica
        expected = [node for node in expected if node.node_ip in document.node_ips]
        names = {node.host for node in expected}
        nodes = [node for node in nodes if node.name in names]
    found = breaches(expected, nodes)
    if found:
        return "; ".join(f"{breach.host} {breach.summary}" for breach in found)
    back = sorted(node.name for node in nodes if node.alive and node.name in conditions.rejoined)
    if back:
        return f"for the head's Ray to reach {', '.join(back)} again"
    share = gpu_share(document.env)
    for node_ip, ranks_there in Counter(document.node_ips).items():
        needed = ranks_there * share
        free = round(free_gpus([node for node in nodes if node.node_ip == node_ip]), 6)
        if free < needed:
            host = next(node.host for node in expected if node.node_ip == node_ip)
            return f"{needed:g} GPUs are needed on {host}, {free:g} are free"
    needed, free = document.gpus * share, round(free_gpus(nodes), 6)
    if free < needed:
        return f"{needed:g} GPUs are needed, {free:g} are free"
    if share < 1 and conditions.measuring:
        # vLLM sizes its cache by the GPU's free memory before and after a trial run: what another
        # one takes meanwhile is counted as its own (determine_available_memory in gpu_worker.py).
        return f"{IN_TURN}: {conditions.measuring} starts on a share of a GPU, too"
    return ""


def store_port(port: int, ports: range) -> int:
    """Return the port for the store of a service that listens on `port`, a different one for each
    of up to len(ports) consecutive ports; 0 to let vLLM find one."""
    return ports[port % len(ports)] if ports else 0


def who_left(started_with: FrozenSet[str], snapshot: Optional[Snapshot]) -> str:
    """Return which node was alive at the start and is dead now, and why, or "".

    A restarted raylet has a new ID, so its node counts as dead: vLLM's worker on the old one is
    gone.
    """
    for node in snapshot.nodes if snapshot else []:
        if not node.alive and node.node_id in started_with:
            reason = node.death_reason or "no reason given"
            return f"{node.name or node.node_ip} left Ray: {reason}"
    return ""


class SupervisedService:
    """One declared service. `tick` never blocks; times named `now` are monotonic seconds."""

    def __init__(
        self,
        document: ServiceDocument,
        paths: NodePaths,
        timing: Timing,
        journal: Journal,
        previous: Optional[ServiceState] = None,
        evidence: Optional[HangEvidence] = None,
    ) -> None:
        """`previous`: this service's state as written by the supervisor of an earlier container.
        `evidence`: collected before hanging ranks are ended."""
        self._shown = document
        self._paths = paths
        self._timing = timing
        self._journal = journal
        self._evidence = evidence
        self._backoff = Backoff(timing.service_backoff_first, timing.service_backoff_max)
        self._attempt: Optional[Attempt] = None
        self._ahead = ImportAhead()
        self._retry_at: Optional[float] = None
        self._kill_at = 0.0  # When a service that is stopping is killed
        self._freed = 0.0  # When the last attempt released its GPUs
        self._ended: Optional[Attempt] = None  # Whose ranks may still have memory
        self._due = self._paired = False
        self._attempts = 0  # Since it was last ready
        self._starts = 0
        self._ready_seconds = 0.0
        self._spent: Dict[str, float] = {}
        self._wakes_in = 0.0
        self._last_error: List[str] = []
        self._last_failure = ""
        self._last_failure_time = 0.0
        # Ids of the Ray nodes of the attempt that failed last, and until when the loss of one of
        # them is taken for the cause.
        self._stood_on: FrozenSet[str] = frozenset()
        self._blame_until = 0.0
        self._phase = ""
        self._detail = ""
        self._since = 0.0
        self._snapshot: Optional[Snapshot] = None
        self.forgotten = False  # Removed and stopped: the supervisor may drop this object
        if previous and previous.fingerprint == document.fingerprint:
            self._last_failure = previous.last_failure
            self._last_failure_time = previous.last_failure_time
            if previous.pid or previous.attempts or previous.ready_seconds:
                self._starts = previous.restarts + 1
        self._turn("waiting", IN_TURN)

    def tick(
        self, now: float, wanted: Optional[ServiceDocument], conditions: RayConditions
    ) -> None:
        """Start, check or stop the service as needed. `wanted` is None once the document was
        removed."""
        self._snapshot, self._due = conditions.snapshot, False
        self._paired = conditions.turn.paired
        if wanted is None:
            self._ahead.end()
        if self._ended and self._ended.let_go(now, conditions.snapshot, conditions.taken):
            self._ended = None
        attempt = self._attempt
        if attempt is None:
            self._without_process(now, wanted, conditions)
        elif self._phase == "stopping":
            self.finish_stop(now)
        elif wanted is None or wanted.fingerprint != attempt.document.fingerprint:
            self._begin_stop(now, attempt, "it was changed" if wanted else "it was removed")
        elif not conditions.ray_up:
            self._wait_again(attempt, _RAY_GONE)
        else:
            self._shown = wanted
            if takes_adapters(wanted.argv):
                attempt.adapters.wanted = wanted.adapters
            self._look(now, attempt)

    def state(self) -> ServiceState:
        """Return the service's entry for state.json."""
        attempt, reading = self._attempt, self.reading
        silence = reading.silence if self._phase == "ready" else None
        # Report a silence only after two readings in a row without a sign of life.
        now = time.monotonic()
        shown = silence and now - silence.since >= self._timing.silence_shown
        placed = self._ranks(attempt) if attempt else []
        return ServiceState(
            name=self._shown.name,
            state=self._phase,
            since=self._since,
            fingerprint=self._shown.fingerprint,
            detail=self._detail,
            pid=attempt.child.pid if attempt else 0,
            attempts=self._attempts,
            restarts=max(0, self._starts - 1),
            stage=attempt.progress() if attempt and self._phase in _LOADING else "",
            ready_seconds=self._ready_seconds,
            start=self._spent,
            kind=reading.kind,
            running=reading.running,
            waiting=reading.waiting,
            tokens_per_second=reading.tokens_per_second,
            kv_cache_use=reading.kv_cache_use,
            ranks=placed,
            unwatched=attempt.unwatched(len(placed), self._snapshot, now) if attempt else "",
            last_error=self._last_error,
            silence=silence.text(now) if silence and shown else "",
            last_failure=self._last_failure,
            last_failure_time=self._last_failure_time,
            key=attempt.key if attempt else "",
            adapters=reading.adapters,
            sleep=self._sleep_state(attempt),
        )

    def _sleep_state(self, attempt: Optional[Attempt]) -> SleepState:
        state = attempt.sleeping.state if attempt and attempt.sleeping else SleepState()
        self._wakes_in = state.wakes_in or self._wakes_in  # Also what an earlier attempt took
        return replace(state, wakes_in=self._wakes_in)

    @property
    def document(self) -> ServiceDocument:
        """That which it follows now."""
        return self._shown

    @property
    def name(self) -> str:
        return self._shown.name

    @property
    def is_standby(self) -> bool:
        return self._shown.is_standby

    @property
    def detail(self) -> str:
        """What it does, and why."""
        return f"is {self._phase}: {self._detail}"

    @property
    def used(self) -> float:
        """When it last had a request or became awake, as far as its process knows; else 0."""
        sleeping = self._attempt.sleeping if self._attempt else None
        return sleeping.used if sleeping else 0.0

    @property
    def reading(self) -> Reading:
        return self._attempt.reading if self._attempt else Reading()

    @property
    def is_awake(self) -> bool:
        return self.engine().phase == "awake"

    def engine(self) -> Engine:
        """Return the engine of a service that shares its GPUs with another."""
        attempt = self._attempt
        if attempt is None and self._ended is None:
            return Engine("due" if self._due else "absent")
        sleeping = attempt.sleeping if attempt else None
        if attempt is None or sleeping is None or self._phase in ("stopping", "stalled"):
            return Engine("moving")
        if sleeping.report.error:  # It will be started again
            return Engine("moving")
        if not attempt.was_ready:
            return Engine("loading")
        report, reading = sleeping.report, attempt.reading
        if sleeping.pending or report.asleep != sleeping.state.asleep:  # Or not taken note of
            return Engine("moving")
        works = reading.running + reading.waiting > 0
        if works and not report.busy:
            attempt.look_again(report.times)
        let_in = report.waiting > 0 and not (report.asleep or report.held)  # In a moment
        return Engine(
            "asleep" if report.asleep else "awake",
            busy=report.busy or works or let_in,
            waiting=report.waiting > 0,
            held=report.held,
            silent=reading.silence is not None,
        )

    def order(self, word: str, now: float) -> None:
        """Give an engine that is awake or asleep an order of node/sleeping.py."""
        if self._attempt and self._attempt.sleeping:
            self._attempt.sleeping.order(word, now)

    def give_way(self, why: str) -> None:
        """End a start that is no failure, for another engine."""
        if self._attempt:
            self._drop(self._attempt)
            self._attempts, self._starts = max(0, self._attempts - 1), max(0, self._starts - 1)
            self._turn("waiting", f"{IN_TURN}: {why}")

    @property
    def measures(self) -> bool:
        """Whether it is starting on a share of a GPU."""
        return self._phase in _LOADING and gpu_share(self._shown.env) < 1

    def stop(self, now: float) -> None:
        """Begin a graceful stop. The caller repeats `finish_stop` until `stopped`."""
        self._ahead.end()
        if self._attempt and self._phase != "stopping":
            self._begin_stop(now, self._attempt, "the supervisor is stopping")

    @property
    def stopped(self) -> bool:
        return self._attempt is None

    def _without_process(
        self, now: float, wanted: Optional[ServiceDocument], conditions: RayConditions
    ) -> None:
        if wanted is None:
            self._turn("stopped", "it was removed")
            self.forgotten = self._ended is None
            return
        if wanted.fingerprint != self._shown.fingerprint or self._phase == "stopped":
            # Failures of the old document say nothing about the new one.
            self._shown = wanted
            self._attempts = self._starts = 0
            self._last_error = []
            self._last_failure, self._last_failure_time = "", 0.0
            self._stood_on = frozenset()
            self._backoff.succeeded()
            self._turn("waiting", "it was changed")
        # vLLM may end seconds before the GCS counts a lost host as dead, even with status 0.
        if now > self._blame_until:
            self._stood_on = frozenset()
        left = who_left(self._stood_on, conditions.snapshot)
        if self._stood_on and not conditions.ray_up:
            left = _RAY_GONE
        if left:
            self._stood_on = frozenset()
            self._last_failure = f"{left} (vLLM {self._last_failure})"
        due = self._retry_at is not None and now >= self._retry_at
        if self._phase != "waiting" and not due:
            return
        reason = why_wait(wanted, conditions, self._freed)
        self._due = not reason
        reason = reason or conditions.turn.why_wait
        if reason:
            self._turn("waiting", reason)
        else:
            self._start(wanted, conditions)

    def _start(self, document: ServiceDocument, conditions: RayConditions) -> None:
        self._shown = document
        try:
            key = read_secret(self._paths.api_key)
        except SecretUnusable as error:
            self._turn("waiting", f"for its key: {error}")
            return
        self._stood_on = frozenset()
        self._attempts += 1
        self._starts += 1
        nodes = conditions.snapshot.nodes if conditions.snapshot else []
        own = set(document.node_ips)
        living = frozenset(
            node.node_id for node in nodes if node.alive and (not own or node.node_ip in own)
        )
        try:
            self._attempt = Attempt(
                document,
                conditions.env,
                self._paths,
                self._timing,
                living,
                key,
                conditions.node_ip,
                store_port(document.port, conditions.store_ports),
                self._ahead,
                beside=conditions.turn.beside,
            )
        except OSError as error:
            self._give_up(f"{document.argv[0]} cannot be started: {error}", [str(error)])
            return
        imported = ", which has imported vLLM" if self._attempt.imported else ""
        pid = self._attempt.child.pid
        self._turn("starting", f"attempt {self._attempts}, pid {pid}{imported}")
        # Only the first attempt: what failed ones leave would add up until it ends by itself.
        if self._attempts == 1:
            self._prestart_ranks(document, {**os.environ, **conditions.env, **document.env})

    def _prestart_ranks(self, document: ServiceDocument, env: Mapping[str, str]) -> None:
        arguments = prestart_arguments(document, env)
        if arguments is None:
            return

        def tell(line: str) -> None:
            if line.startswith(FAILED):
                self._journal.write(document.name, "ranks", line)

        try:
            Child([*own_argv(), "prestart", *arguments], env, None, tell)
        except OSError as error:
            tell(f"{FAILED}: {error}")

    def _look(self, now: float, attempt: Attempt) -> None:
        """Act on the state of a running attempt: the first case that applies decides."""
        reading = attempt.reading
        left = who_left(attempt.nodes, self._snapshot)
        ended_rank = attempt.ended_rank(self._snapshot, now, self._timing.rank_patience)
        if attempt.child.exit_status() is not None:
            how = attempt.how_it_ended()
            if attempt.lost_rank:
                how = f"{attempt.lost_rank}, and then vLLM {how}"
            if attempt.refused_its_arguments():
                self._drop(attempt)
                self._give_up(f"vLLM rejected its arguments ({how})", attempt.last_lines())
            else:
                self._retry_later(now, attempt, how)
        elif left:
            self._wait_again(attempt, left)
        elif ended_rank:
            self._retry_later(now, attempt, ended_rank)
        elif attempt.hung:
            self._end_hung(now, attempt)
        elif reading.silence and now - reading.silence.since >= self._shown.stall_timeout:
            self._turn("stalled", reading.silence.text(now))
            self._hang(now, attempt, f"stalled: {reading.silence.text(now)}")
        elif reading.ready:
            if not attempt.was_ready:
                self._became_ready(now, attempt)
            placed = self._ranks(attempt)
            if placed and placed != attempt.placed:
                attempt.placed = placed
                told = (f"{one.rank} on {one.host} (process {one.pid})" for one in placed)
                self._journal.write(self._shown.name, "ranks", ", ".join(told))
            if now - attempt.started - self._ready_seconds > self._timing.ray_steady:
                self._backoff.succeeded()
            self._rest(now, attempt)
        elif reading.unprovable:
            self._drop(attempt)
            self._give_up(UNPROVABLE, [f"{UNPROVABLE}: {reading.unprovable}"])
        elif now - attempt.started > attempt.document.ready_timeout:
            limit = f"not ready within {attempt.document.ready_timeout:g} s"
            self._hang(now, attempt, f"{limit} ({reading.error})")
        elif attempt.progress():
            # vLLM logs nothing while Ray starts the ranks' processes and they import vLLM, which
            # takes 30 to 60 s from a cold disk.
            started = len(attempt.owned(self._snapshot)) if attempt.progress() == "ray" else 0
            counted = f"{started} of {attempt.document.gpus} ranks started" if started else ""
            self._turn("loading", counted or attempt.stage_line or reading.error)

    def _became_ready(self, now: float, attempt: Attempt) -> None:
        attempt.was_ready = True
        if attempt.sleeping:
            attempt.sleeping.used = now
        self._ready_seconds = now - attempt.started
        self._spent = attempt.spent(now)
        self._attempts = 0
        self._last_error = []
        result = kind_named(attempt.reading.kind).result
        answers = ", ".join(filter(None, (result, attempt.reading.answer)))
        stages = ", ".join(f"{name} {took:g}" for name, took in self._spent.items())
        took = f"after {self._ready_seconds:.1f} s ({stages})"
        self._turn("ready", f"{took}: answers {answers}")

    def _rest(self, now: float, attempt: Attempt) -> None:
        """Order it to sleep after its idle time, and to wake once a request waits. For one that
        never sleeps, have vLLM imported for its next start."""
        sleeping = attempt.sleeping
        if sleeping is None:
            if now - attempt.started - self._ready_seconds > self._timing.import_ahead:
                self._ahead.begin(attempt.command)
            return
        if self._shown.least >= 0:
            attempt.look_again(now // self._timing.scale_every)
        event = sleeping.take_turn(now)
        if event:
            self._journal.write(
                self._shown.name, "asleep" if sleeping.state.asleep else "awake", event
            )
        reading = attempt.reading
        working = reading.running + reading.waiting > 0  # Maybe for nobody who waits for the answer
        failed = sleeping.failure(now, self._timing.sleep_limit)
        if failed and not working:
            self._retry_later(now, attempt, failed)
        elif sleeping.pending or self._paired:
            return  # EnginePair decides for two
        elif sleeping.state.asleep or sleeping.report.held:
            if sleeping.report.waiting or self._shown.stays_awake:
                sleeping.order(WAKE, now)
        elif self._shown.stays_awake or working:
            return
        elif self._shown.idle and now - sleeping.used >= self._shown.idle:
            sleeping.order(SLEEP, now)

    def _hang(self, now: float, attempt: Attempt, why: str) -> None:
        """Have all hosts collect evidence, and end all ranks once they have had time to."""
        placed = self._ranks(attempt)
        own = session_members(attempt.child.pid)
        asked = self._evidence.ask(self._shown.name, why, placed, own) if self._evidence else 0.0
        attempt.hung = now + asked, why
        self._end_hung(now, attempt)

    def _end_hung(self, now: float, attempt: Attempt) -> None:
        if attempt.hung and now >= attempt.hung[0]:
            self._retry_later(now, attempt, attempt.hung[1])

    def _ranks(self, attempt: Attempt) -> List[Rank]:
        if self._snapshot is None:
            return []
        sizes = (self._shown.tensor_parallel, self._shown.pipeline_parallel)
        return ranks(attempt.owned(self._snapshot), self._snapshot.nodes, *sizes)

    def _retry_later(self, now: float, attempt: Attempt, why: str) -> None:
        """End all ranks after a failure of the service itself, and start again after a delay."""
        self._drop(attempt)
        self._last_error = attempt.last_lines()
        self._stood_on, self._blame_until = attempt.nodes, now + self._timing.blame_limit
        delay, failures = self._backoff.failed(), self._backoff.failures
        if self.is_standby and failures >= self._timing.attempts_until_failed:
            why += f"; {failures} failures in a row, and the first engine sleeps for each start"
            self._give_up(why, self._last_error)
            return
        self._retry_at = now + delay
        beyond = self._attempts >= self._timing.attempts_until_failed
        self._turn("failed" if beyond else "backing-off", f"{why}; retrying in {delay:g} s")
        self._record_failure(why)

    def _wait_again(self, attempt: Attempt, why: str) -> None:
        """End all ranks because a node that they need is gone. This does not count as a failure of
        the service, so it starts again without a delay once the node is back."""
        self._drop(attempt)
        self._last_error = attempt.last_lines()
        self._turn("waiting", why)
        self._record_failure(why)

    def _give_up(self, why: str, lines: List[str]) -> None:
        self._last_error = lines
        self._retry_at = None
        self._turn("failed", f"{why}; not retried until it is changed")
        self._record_failure(why)

    def _record_failure(self, failure: str) -> None:
        self._last_failure, self._last_failure_time = failure, time.time()

    def _drop(self, attempt: Attempt) -> None:
        attempt.kill()
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        self._attempt = None
        self._freed = time.monotonic()
        self._ended = attempt if attempt.document.takes_turns else None

    def _begin_stop(self, now: float, attempt: Attempt, why: str) -> None:
        patience = min(attempt.document.shutdown_timeout + 5.0, self._timing.stop_limit)
        if not attempt.was_ready:
            patience = min(patience, self._timing.stop_loading)
        self._kill_at = now + patience
        attempt.terminate()
        self._turn("stopping", f"{why}; at most {patience:g} s")

    def finish_stop(self, now: float) -> None:
        """Kill a stopping service once vLLM has ended or time is up. Check `stopped` after."""
        attempt = self._attempt
        if attempt is None or (attempt.child.exit_status() is None and now < self._kill_at):
            return
        attempt.kill()
        if attempt.child.gone():
            self._forget(attempt)
            self._turn("waiting", "stopped")

    def _turn(self, phase: str, detail: str) -> None:
        changed = phase != self._phase
        if changed:
            self._since = time.time()
        if changed or (phase == "waiting" and detail != self._detail):
            self._journal.write(self._shown.name, phase, detail)
        self._phase, self._detail = phase, detail
