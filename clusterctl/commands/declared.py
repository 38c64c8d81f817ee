"""The services declared on the head: adding one, following it, and taking one away."""

from __future__ import annotations

import time

from clusterctl import deadlines
from clusterctl.commands.reach import (
    node_files,
    read_state,
    require_bootstrapped,
)
from clusterctl.commands.reach import read_head_state as read_head_state
from clusterctl.commands.reach import services_in as services_in
from clusterctl.commands.service_watch import (
    OutOfSight,
    Overruled,
    PatientLook,
    StageEvents,
    await_ready,
    followed,
)
from clusterctl.engine.events import (
    EventSink,
    Note,
    StageFinished,
    StageStarted,
    StepFinished,
    StepStarted,
)
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed, UsageError
from clusterctl.facts.gather import probe
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import (
    NodeState,
    ServiceDocument,
    from_json,
    to_json,
)
from clusterctl.node.paths import NodePaths
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock

_READ = 'if [ -e "$1" ]; then cat "$1"; fi'


def look_at_head(
    inventory: Inventory, head: Transport
) -> tuple[NodeState | None, dict[str, ServiceDocument]]:
    """What runs and what is declared, in one round trip."""
    answer = _ask(inventory, head)
    return _state_in(inventory, answer), services_in(inventory.cluster, answer)


def look_at_supervised(inventory: Inventory, head: Transport) -> Probe:
    """The answer of a head whose supervisor works. Raises RequirementsNotMet when it does not:
    nobody there would follow a change."""
    answer = _ask(inventory, head)
    require_bootstrapped(inventory, _state_in(inventory, answer), answer.facts.clock)
    return answer


def _ask(inventory: Inventory, head: Transport) -> Probe:
    return probe(head, files=node_files(inventory.cluster))


def _state_in(inventory: Inventory, answer: Probe) -> NodeState | None:
    return read_state(answer.files.get(str(NodePaths(inventory.cluster).state)))


def require_service(name: str, declared: dict[str, ServiceDocument]) -> ServiceDocument:
    """The service called `name`. Raises UsageError that lists those there are."""
    if name in declared:
        return declared[name]
    have = ", ".join(sorted(declared)) or "none"
    raise UsageError(f"no service is called {name}; there are: {have}", hint="clusterctl status")


def declare(
    inventory: Inventory,
    head: Transport,
    lock: ClusterLock,
    document: ServiceDocument,
    old: ServiceDocument | None,
    file: bytes | None,
    sink: EventSink,
) -> None:
    """Write the document over `file`, what was there when this was decided, and follow it; when
    the service fails, put `old` back. Each is written only while `lock` is held and nobody else
    wrote meanwhile: a run that was frozen does not bring back what others stopped.

    A head that cannot be watched is no failure of the service: it goes on loading. Raises
    OutOfSight then, else as `await_ready`.
    """
    path = service_file(inventory.cluster, document.name)
    lock.replace(path, _written(document), before=file)
    try:
        follow(inventory, head, document, sink)
    except (OutOfSight, Overruled):
        raise
    except ClusterctlError:
        sink(Note(_put_back(lock, path, document, old)))
        raise


def follow(
    inventory: Inventory, head: Transport, document: ServiceDocument, sink: EventSink
) -> None:
    """Tell the stages of a declared service until it is ready. Raises as `declare`."""

    def look() -> NodeState | None:
        state = read_head_state(inventory, head)
        if state is not None and not followed(state, document):
            _ensure_declared(inventory, head, document)
        return state

    await_ready(document, PatientLook(look), StageEvents(head.host.name, sink))


def _ensure_declared(inventory: Inventory, head: Transport, document: ServiceDocument) -> None:
    """Raises Overruled when the head's file of the service is gone, or says something else."""
    path = service_file(inventory.cluster, document.name)
    text = head.run(
        ["sh", "-c", _READ, "read", path], sudo=True, timeout=deadlines.SMALL_FILE
    ).stdout
    try:
        same = bool(text) and from_json(ServiceDocument, text).fingerprint == document.fingerprint
    except ValueError:
        return  # unreadable: the supervisor says so, and goes on with what it read before
    if not same:
        raise Overruled(
            f"{document.name} was {'served otherwise' if text else 'stopped'} by someone else "
            "meanwhile, and is left as it is",
            host=head.host.name,
            hint="clusterctl status",
        )


def _put_back(
    lock: ClusterLock, path: str, document: ServiceDocument, old: ServiceDocument | None
) -> str:
    """What was done about a service that failed, in words; the failure is what gets raised."""
    name = document.name
    try:
        lock.replace(path, _written(old) if old else None, before=_written(document))
    except ClusterctlError as error:
        return f"{name} stays as it is declared: {error}; end it: clusterctl stop {name}"
    if old is None:
        return f"{name} is withdrawn: it would fail again"
    return f"{name} goes back to what it was served with before"


def service_file(cluster: str, name: str) -> str:
    """The file on the head that declares the service called `name`."""
    return str(NodePaths(cluster).services / f"{name}.json")


def _written(document: ServiceDocument) -> bytes:
    return to_json(document).encode()


def stop_service(
    inventory: Inventory,
    head: Transport,
    lock: ClusterLock,
    document: ServiceDocument,
    file: bytes | None,
    sink: EventSink,
) -> None:
    """Withdraw it, whose file holds `file`, and wait until the supervisor says that it is gone.

    Raises StepFailed when it is still there after its own shutdown time and some slack.
    """
    started, host = time.monotonic(), head.host.name
    title = f"Stop {document.name}"
    sink(StageStarted(title, (host,)))
    sink(StepStarted(host, title, Change("let running requests finish, then end vLLM")))
    lock.replace(service_file(inventory.cluster, document.name), None, before=file)
    deadline = started + document.shutdown_timeout + deadlines.STOP_SLACK
    while _still_there(read_head_state(inventory, head), document.name):
        if time.monotonic() > deadline:
            raise StepFailed(
                f"{document.name} still runs after {deadline - started:.0f} s",
                host=host,
                hint=f"clusterctl logs {document.name}",
            )
        time.sleep(0.3)
    sink(StepFinished(host, title, "changed", time.monotonic() - started))
    sink(StageFinished(title, time.monotonic() - started))


def _still_there(state: NodeState | None, name: str) -> bool:
    if state is None:
        raise RequirementsNotMet(
            "no supervisor reports from the head: what it declared cannot be stopped by it",
            hint="clusterctl status",
        )
    return any(service.name == name and service.state != "stopped" for service in state.services)
