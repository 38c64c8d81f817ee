"""Watch a service that the supervisor starts: its stages as events, until it is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterctl import deadlines
from clusterctl.deadlines import Wait
from clusterctl.engine.events import EventSink, StepFinished, StepProgress, StepStarted
from clusterctl.engine.step import Change
from clusterctl.errors import (
    AuthenticationRejected,
    ClusterctlError,
    CommandTimedOut,
    ConnectionFailed,
    HostKeyProblem,
    RayNotFormed,
    StepFailed,
)
from clusterctl.node.documents import NodeState, ServiceDocument, ServiceState
from clusterctl.serving.diagnose import explain

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
    """The head cannot be watched any more; the service itself may be fine."""


class ChangedByOthers(StepFailed):
    """Another run stopped or redeclared the service while it was watched."""


@dataclass
class PatientReader:
    """Reads the head's state and tolerates short failures of the connection.

    Returns None while reads fail. Raises ContactLost after `deadlines.OUT_OF_SIGHT` seconds of
    failures, or at once if another try cannot help (a refused key, sudo): the service continues
    without this run.
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
                    f"lost contact with the head; the service keeps loading there: {error.summary}",
                    host=error.host,
                    hint="clusterctl status",
                    detail=error.detail,
                ) from error
            self.wait.sleep(RETRY)
            return None
        self._failing_since = None
        return state


def await_ready(
    document: ServiceDocument,
    read: Callable[[], NodeState | None],
    events: StageEvents,
    wait: Wait | None = None,
) -> ServiceState:
    """Return the state of the service once it is ready.

    `read` returns the head's current state; its errors propagate. Raises StepFailed with the cause
    found in the log when an attempt fails or time runs out, and RayNotFormed if the service waits
    for Ray's nodes or GPUs for more than `deadlines.WAIT_FOR_RAY` seconds.
    """
    wait = wait or Wait()
    seen = wait.clock()
    node: NodeState | None = None
    last = "its supervisor never reported it"
    waiting_since: float | None = None
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
        if state.state in {"failed", "backing-off", "stopped"} and state.last_error:
            raise explain(document.name, state.last_error, host=events.host)
        if state.state != "waiting":
            waiting_since = None
        elif waiting_since is None:
            waiting_since = now
        elif now - waiting_since > deadlines.WAIT_FOR_RAY:
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


def followed(node: NodeState, document: ServiceDocument) -> ServiceState | None:
    """Return the service's state, or None until the supervisor follows exactly this document."""
    for state in node.services:
        if state.name == document.name and state.fingerprint == document.fingerprint:
            return state
    return None


def _colon(text: str) -> str:
    return f": {text}" if text else ""
