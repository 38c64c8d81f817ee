"""Following a service that the supervisor brings up: its stages as events, until it is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterctl import deadlines
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
from clusterctl.ray_cluster.contract import Wait
from clusterctl.serving.diagnose import explain

POLL = 0.3  # Seconds between two looks at the head's state

RETRY = 2.0  # Seconds until the next look after one that failed on the way

_STAGES = {
    "waiting": "wait for Ray",
    "starting": "start vLLM",
    "ray": "place ranks through Ray",
    "weights": "load weights",
    "kv-cache": "size the KV cache",
    "graphs": "capture graphs",
    "warm-up": "warm up",
    "listening": "first answer",
    "backing-off": "start again after a failure",
}


def stage_title(state: ServiceState) -> str:
    """What a user reads for where the service is."""
    key = state.stage if state.state == "loading" and state.stage else state.state
    return _STAGES.get(key, "start vLLM" if state.state == "loading" else key)


@dataclass
class StageEvents:
    """Turns a sequence of states into started and finished stages."""

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


class OutOfSight(ConnectionFailed):
    """The head cannot be watched any more; that says nothing about the service."""


class Overruled(StepFailed):
    """Someone else stopped the service, or declared it otherwise, while it was watched."""


@dataclass
class PatientLook:
    """A look at the head's state that outlasts a short failure of the way there.

    It is None while looks fail. Raises OutOfSight after `deadlines.OUT_OF_SIGHT` of them, or at
    once where another try cannot help (a refused key, sudo): the head's service goes on without us.
    """

    read: Callable[[], NodeState | None]
    wait: Wait = field(default_factory=Wait)
    _failing_since: float | None = None

    def __call__(self) -> NodeState | None:
        try:
            state = self.read()
        except Overruled:
            raise
        except ClusterctlError as error:
            self._bear(error)
            return None
        self._failing_since = None
        return state

    def _bear(self, error: ClusterctlError) -> None:
        now = self.wait.clock()
        if self._failing_since is None:
            self._failing_since = now
        passing = isinstance(error, ConnectionFailed | CommandTimedOut) and not isinstance(
            error, AuthenticationRejected | HostKeyProblem
        )
        if not passing or now - self._failing_since >= deadlines.OUT_OF_SIGHT:
            raise OutOfSight(
                f"the service goes on loading, out of sight: {error.summary}",
                host=error.host,
                hint="clusterctl status",
                detail=error.detail,
            ) from error
        self.wait.sleep(RETRY)


def await_ready(
    document: ServiceDocument,
    read: Callable[[], NodeState | None],
    events: StageEvents,
    wait: Wait | None = None,
) -> ServiceState:
    """The state of the service once it is ready.

    `read` gives the head's state anew; what it raises is passed on. Raises StepFailed with what
    the log says when an attempt fails or time runs out, RayNotFormed when Ray does not come to
    hold what it needs.
    """
    wait = wait or Wait()
    seen = wait.clock()
    node: NodeState | None = None
    last = "nothing of it was seen"
    waiting_since: float | None = None
    deadline = seen + document.ready_timeout + document.shutdown_timeout + deadlines.NOTICE
    while (now := wait.clock()) < deadline:
        node = read()
        state = followed(node, document) if node else None
        if state is None:
            if now - seen > deadlines.NOTICE + document.shutdown_timeout:
                raise _unnoticed(document, node, events.host)
            wait.sleep(POLL)
            continue
        seen = now
        if state.state == "ready":
            events.finish()
            return state
        events.see(state)
        last = f"last seen: {stage_title(state)}{_colon(state.detail)}"
        _raise_if_over(state, document, events.host)
        waiting_since = _waiting(state, waiting_since, now, events.host)
        wait.sleep(POLL)
    raise StepFailed(
        f"no answer within {document.ready_timeout:.0f} s; {last}",
        host=events.host,
        hint=f"clusterctl logs {document.name}",
    )


def followed(node: NodeState, document: ServiceDocument) -> ServiceState | None:
    """Its state, once the supervisor follows this very document."""
    for state in node.services:
        if state.name == document.name and state.fingerprint == document.fingerprint:
            return state
    return None


def _waiting(state: ServiceState, since: float | None, now: float, host: str) -> float | None:
    """Since when it waits for Ray; raises once that is too long."""
    if state.state != "waiting":
        return None
    if since is not None and now - since > deadlines.WAIT_FOR_RAY:
        raise RayNotFormed(
            f"Ray did not come to hold what the service needs: {state.detail}",
            host=host,
            hint="clusterctl status",
        )
    return since if since is not None else now


def _raise_if_over(state: ServiceState, document: ServiceDocument, host: str) -> None:
    if state.state in {"failed", "backing-off", "stopped"} and state.last_error:
        raise explain(document.name, state.last_error, host=host)


def _unnoticed(document: ServiceDocument, node: NodeState | None, host: str) -> StepFailed:
    last = f"Ray there is {node.ray}{_colon(node.ray_detail)}" if node else "it reports nothing"
    return StepFailed(
        f"the supervisor took no notice of {document.name} within {deadlines.NOTICE:.0f} s; {last}",
        host=host,
        hint="clusterctl status",
    )


def _colon(text: str) -> str:
    return f": {text}" if text else ""
