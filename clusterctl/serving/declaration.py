"""The services and replicas declared on a host: declare one and wait until it is ready, or stop
it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl import deadlines
from clusterctl.deadlines import Wait
from clusterctl.diagnosis.verdict import explain
from clusterctl.engine.events import (
    EventSink,
    Note,
    StepFinished,
    StepProgress,
    StepStarted,
)
from clusterctl.engine.step import Change
from clusterctl.errors import (
    AuthenticationRejected,
    ClusterctlError,
    CommandTimedOut,
    ConnectionFailed,
    HostKeyProblem,
    RayNotFormed,
    RequirementsNotMet,
    StepFailed,
    UsageError,
)
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import (
    IN_TURN,
    NodeState,
    ServiceDocument,
    ServiceState,
    from_json,
    replica_name,
    service_of,
    standby_name,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.node.gateway_config import LOOPBACK
from clusterctl.ray_cluster.topology import reached_at
from clusterctl.survey.survey import Survey, read_reported_state
from clusterctl.transport import python
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock

LOG_ENDS = python.Program("clusterctl.transport", ("log_reader", "log_ends"))
"""Sends the ends of a host's logs."""

POLL = 0.3  # seconds between two reads of the head's state
RETRY = 2.0  # seconds until the next read after one that failed

_STAGES = {
    "waiting": "wait for Ray",
    "starting": "start vLLM",
    "ray": "start ranks through Ray",
    "ranks": "connect ranks",
    "weights": "load weights",
    "kv-cache": "size the KV cache",
    "graphs": "capture graphs",
    "warm-up": "warm up",
    "listening": "first answer",
    "backing-off": "start again after a failure",
}


def stage_title(state: ServiceState) -> str:
    """Return the title of a service's stage, as shown to users."""
    key = state.stage if state.state == "loading" and state.stage else state.state
    return _STAGES.get(key, "start vLLM" if state.state == "loading" else key)


@dataclass
class StageEvents:
    """Turns a sequence of states into started and finished steps."""

    host: str
    sink: EventSink
    _title: str = ""
    _since: float = field(default_factory=time.monotonic)
    _detail: str = ""

    def see(self, state: ServiceState) -> None:
        title = stage_title(state)
        if title != self._title:
            self.finish()
            self._title, self._since = title, time.monotonic()
            self.sink(StepStarted(self.host, title, Change(title)))
        if state.detail and state.detail != self._detail:
            self._detail = state.detail
            self.sink(StepProgress(self.host, title, f"{title}: {state.detail}"))

    def finish(self) -> None:
        if self._title:
            spent = time.monotonic() - self._since
            self.sink(StepFinished(self.host, self._title, "changed", spent))
            self._title = ""


class ContactLost(ConnectionFailed):
    """The head can no longer be watched; the service itself may be fine."""


class ChangedByOthers(StepFailed):
    """Another run stopped or redeclared the service while it was watched."""


@dataclass
class PatientReader:
    """Reads the head's state and tolerates short failures of the connection.

    Returns None while reads fail. Raises ContactLost after `deadlines.OUT_OF_SIGHT` seconds of
    failures, or at once if a retry cannot help (a refused key, sudo): the service continues without
    this run.
    """

    read: Callable[[], NodeState | None]
    wait: Wait = field(default_factory=Wait)
    _failing_since: float | None = None

    def __call__(self) -> NodeState | None:
        try:
            state = self.read()
        except ChangedByOthers:
            raise
        except ClusterctlError as error:
            now = self.wait.clock()
            if self._failing_since is None:
                self._failing_since = now
            passing = isinstance(error, ConnectionFailed | CommandTimedOut) and not isinstance(
                error, AuthenticationRejected | HostKeyProblem
            )
            if not passing or now - self._failing_since >= deadlines.OUT_OF_SIGHT:
                raise ContactLost(
                    f"lost contact with the host; the service keeps loading there: {error.summary}",
                    host=error.host,
                    hint="clusterctl status",
                    detail=error.detail,
                ) from error
            self.wait.sleep(RETRY)
            return None
        self._failing_since = None
        return state


def log_end(
    inventory: Inventory, host: Transport, name: str, *, timeout: float = deadlines.LOG_TAILS
) -> Sequence[str]:
    """Return the end of a service's log on its host; "" if it cannot be read."""
    paths = NodePaths(inventory.cluster)
    log = paths.log(name).name
    order = {
        "directory": str(paths.logs),
        "only": log,
        "secrets": [str(paths.api_key), str(paths.ray_token)],
    }
    try:
        said = python.ask(
            host, LOG_ENDS, order, doing="reading the log", timeout=timeout, sudo=True
        )
    except ClusterctlError:
        return ()
    return str(said.get(log, "")).splitlines() if isinstance(said, dict) else ()


@dataclass(frozen=True)
class _Failed:
    """The last failure of a start. A single failure does not mean that the next start would fail,
    too: a port or a GPU may have been taken briefly."""

    attempt: int = 0
    error: ClusterctlError | None = None

    def again(self, attempt: int, error: ClusterctlError) -> bool:
        """Whether a later attempt failed for the same reason, numbers such as pids aside."""
        if self.error is None or attempt == self.attempt:
            return False
        return _without_numbers(error) == _without_numbers(self.error)


def _without_numbers(error: ClusterctlError) -> str:
    return re.sub(r"\d+", "N", error.summary)


def await_ready(
    document: ServiceDocument,
    read: Callable[[], NodeState | None],
    events: StageEvents,
    wait: Wait | None = None,
    *,
    log: Callable[[], Sequence[str]] = list,
    for_ray: float = deadlines.WAIT_FOR_RAY,
) -> ServiceState:
    """Return the state of the service once it is ready.

    `read` returns the head's current state; its errors propagate. `log` returns the end of the
    service's log, in which the cause is often far above the last lines in the state. Raises
    StepFailed with the cause found in the log when the supervisor gives up, when an attempt fails
    like the one before, or when time runs out; and RayNotFormed if the service waits for Ray's
    nodes or GPUs for more than `for_ray` seconds.
    """
    wait = wait or Wait()
    seen = wait.clock()
    node: NodeState | None = None
    last = "its supervisor never reported it"
    waiting_since: float | None = None
    failed = _Failed()
    deadline = seen + document.ready_timeout + document.shutdown_timeout + deadlines.NOTICE
    while (now := wait.clock()) < deadline:
        node = read()
        state = followed(node, document) if node else None
        if state is None:
            if now - seen > deadlines.NOTICE + document.shutdown_timeout:
                ray = f"Ray there is {node.ray}{_colon(node.ray_detail)}" if node else ""
                raise StepFailed(
                    f"the supervisor did not pick up {document.name} within "
                    f"{deadlines.NOTICE:.0f} s; {ray or 'it reports nothing'}",
                    host=events.host,
                    hint="clusterctl status",
                )
            wait.sleep(POLL)
            continue
        seen = now
        if state.state == "ready":
            events.finish()
            return state
        events.see(state)
        last = f"last seen: {stage_title(state)}{_colon(state.detail)}"
        # What stopped may have failed long ago.
        ended = state.state in {"failed", "backing-off"}
        if ended or (state.state == "stopped" and state.last_error):
            last_attempt = state.state != "backing-off"
            if last_attempt or state.attempts != failed.attempt:
                error = _why_not_started(state, log, events.host)
                if last_attempt or failed.again(state.attempts, error):
                    raise error
                failed = _Failed(state.attempts, error)
                events.sink(Note(f"{document.name} is tried again after: {error}", events.host))
        if state.state != "waiting" or state.detail.startswith(IN_TURN):
            waiting_since = None
        elif waiting_since is None:
            waiting_since = now
        elif now - waiting_since > for_ray:
            raise RayNotFormed(
                f"Ray does not have what the service needs: {state.detail}",
                host=events.host,
                hint="clusterctl status",
            )
        wait.sleep(POLL)
    raise StepFailed(
        f"no answer within {document.ready_timeout:.0f} s; {last}",
        host=events.host,
        hint=f"clusterctl logs {document.name}",
    )


def _why_not_started(
    state: ServiceState, log: Callable[[], Sequence[str]], host: str
) -> StepFailed:
    """Return the error for a start that failed. If vLLM ended without a word, the log only tells
    how an earlier start ended."""
    if state.last_error:
        return explain(state.name, log() or state.last_error, host=host)
    return StepFailed(
        f"{state.name} did not start: vLLM {state.last_failure or 'ended'} before it wrote a line",
        host=host,
        hint=f"clusterctl exec --limit {host} --node -- vllm --version",
    )


def followed(node: NodeState, document: ServiceDocument) -> ServiceState | None:
    """Return the state of the engine that serves or is to serve, or None until the supervisor
    follows exactly this document. That is the standby while it serves: the first engine may have
    to wait for a pause between requests that never comes."""
    state = node.service(document.name)
    if state is None or state.fingerprint != document.fingerprint:
        return None
    own = (each for each in node.standbys if each.name == standby_name(document.name))
    standby = next(own, None)
    if state.state == "ready" or standby is None or standby.fingerprint != document.fingerprint:
        return state
    return standby if standby.state == "ready" and not standby.sleep.asleep else state


def _colon(text: str) -> str:
    return f": {text}" if text else ""


def service_file(cluster: str, name: str) -> str:
    """Return the path of the file that declares the service or replica `name` on its host."""
    return str(NodePaths(cluster).services / f"{name}.json")


def members_file(cluster: str, service: str) -> str:
    """Return the path on the head of the file that lists the replicas of a service."""
    return str(NodePaths(cluster).members / f"{service}.json")


def require_service(name: str, declared: Mapping[str, ServiceDocument]) -> ServiceDocument:
    """Return the service `name`. Raises UsageError with the names of those declared."""
    if name in declared:
        return declared[name]
    raise _unknown(name, {document.service for document in declared.values()})


def _unknown(name: str, services: Iterable[str]) -> UsageError:
    have = ", ".join(sorted(services)) or "none"
    return UsageError(f"no service named {name}; services: {have}", hint="clusterctl status")


@dataclass(frozen=True)
class ServedAt:
    """An API as the head reaches it."""

    served_name: str
    address: str
    port: int


def served_at(survey: Survey, name: str) -> ServedAt:
    """Return where the service or replica `name` is served. Only the head has to answer.

    A service is reached through the gateway while that is up, otherwise at its first replica that
    is not draining. Raises UsageError with the names of those declared.
    """
    service = service_of(name)
    listed = survey.service(service).listed
    if listed and listed.members:
        model = (listed.served_names or [name])[0]
        address = _gateway_address(survey, listed.port)
        if name == service and address:
            return ServedAt(model, address, listed.port)
        for one in sorted(listed.members, key=lambda member: member.draining):
            if name in (service, replica_name(service, one.replica)):
                return ServedAt(model, one.address, one.port)
    if name in survey.replicas:
        document = survey.replicas[name].document
        return ServedAt(document.served_name, document.host, document.port)
    raise _unknown(name, survey.services)


def _gateway_address(survey: Survey, port: int) -> str:
    """Return where the head reaches its gateway's `port`; "" while it does not listen."""
    state = survey.fresh_state(survey.inventory.head.name)
    if state is None or state.gateway.state != "up":
        return ""
    for listens in state.gateway.listens:
        address, _, number = listens.rpartition(":")
        # The address that gateways share may be another host's now
        if number == str(port) and address != str(survey.inventory.gateway.virtual_ip):
            return LOOPBACK if state.gateway.tls else reached_at(address, LOOPBACK)
    return ""


@dataclass(frozen=True)
class HostServices:
    """The services declared on one host; progress is reported to `sink`."""

    inventory: Inventory
    host: Transport  # That runs their API servers
    sink: EventSink

    def declare(
        self,
        lock: ClusterLock,
        document: ServiceDocument,
        old: ServiceDocument | None,
        file: bytes | None,
        proof: Callable[[], object] = lambda: None,
    ) -> None:
        """Write the document if the file on the host still contains `file` (compare-and-swap), wait
        until the service is ready, and call `proof`. If it fails, restore `old`, but only if no
        other run has written the file and `lock` is held: a suspended run must not undo others'
        changes.

        Losing contact with the host does not count as a failure: the service keeps loading. Raises
        ContactLost in that case, otherwise what `await_ready` raises.
        """
        path = service_file(self.inventory.cluster, document.name)
        written = to_json(document).encode()
        lock.replace(path, written, before=file, on=self.host)
        try:
            self.follow(document)
            proof()
        except (ContactLost, ChangedByOthers):
            raise
        except ClusterctlError:
            name, before = document.name, to_json(old).encode() if old else None
            try:
                lock.replace(path, before, before=written, on=self.host)
            except ClusterctlError as error:
                stop = f"clusterctl stop {document.service}"
                note = f"{name} stays declared: {error}; to end it: {stop}"
            else:
                restored = ", and its previous declaration restored" if old else ""
                note = f"{name} is withdrawn{restored}"
            self.sink(Note(note))
            raise

    def follow(self, document: ServiceDocument, for_ray: float = deadlines.WAIT_FOR_RAY) -> None:
        """Report the stages of a declared service until it is ready. Raises as `await_ready`, and
        ChangedByOthers."""

        path, host = service_file(self.inventory.cluster, document.name), self.host.host.name

        def look() -> NodeState | None:
            state = read_reported_state(self.inventory, self.host)
            if state is None or followed(state, document):
                return state
            text = (self.host.read_file(path) or b"").decode(errors="replace")
            try:
                same = text and from_json(ServiceDocument, text).fingerprint == document.fingerprint
            except ValueError:
                return state  # unreadable: the supervisor reports it, and keeps the last good one
            if not same:
                raise ChangedByOthers(
                    f"{document.name} was {'changed' if text else 'stopped'} by someone else "
                    "meanwhile, and was left as it is",
                    host=host,
                    hint="clusterctl status",
                )
            return state

        events = StageEvents(host, self.sink)
        await_ready(
            document,
            PatientReader(look),
            events,
            log=lambda: log_end(self.inventory, self.host, document.name),
            for_ray=for_ray,
        )

    def stop(self, lock: ClusterLock, document: ServiceDocument, file: bytes | None) -> None:
        """Delete the service's file, which must still contain `file`, and wait until the supervisor
        reports that the service has stopped.

        Raises StepFailed if it still runs `deadlines.STOP_SLACK` s after its shutdown timeout.
        """
        started, host = time.monotonic(), self.host.host.name
        title = f"stop {document.name}"
        summary = f"let running requests of {document.name} finish, then end vLLM"
        self.sink(StepStarted(host, title, Change(summary)))
        file_name = service_file(self.inventory.cluster, document.name)
        lock.replace(file_name, None, before=file, on=self.host)

        def stopped() -> bool | None:
            state = read_reported_state(self.inventory, self.host)
            if state is None:
                raise RequirementsNotMet(
                    "no supervisor reports on this host, so nothing can stop the service there",
                    host=host,
                    hint="clusterctl status",
                )
            own = state.engines_of(document.name)
            return all(each.state == "stopped" for each in own) or None

        limit = document.shutdown_timeout + deadlines.STOP_SLACK
        if not deadlines.wait_until(stopped, limit, every=0.3):
            raise StepFailed(
                f"{document.name} still runs after {limit:.0f} s",
                host=host,
                hint=f"clusterctl logs {document.name}",
            )
        self.sink(StepFinished(host, title, "changed", time.monotonic() - started))


def read_key(inventory: Inventory, head: Transport) -> str:
    """Return the API key from its file on the head, read over SSH."""
    path = str(NodePaths(inventory.cluster).api_key)
    key = head.read_file(path)
    if key is None:
        raise StepFailed(
            "the API key cannot be read",
            host=head.host.name,
            hint=f"clusterctl bootstrap {inventory.file}",
            detail=f"{path} does not exist",
        )
    return key.decode().strip()
