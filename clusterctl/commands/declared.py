"""The services declared on the head: adding one, following it, and taking one away."""

from __future__ import annotations

import time

from clusterctl import deadlines
from clusterctl.commands.reach import node_files, read_state, require_bootstrapped
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
    NodeDocument,
    NodeState,
    ServiceDocument,
    UnreadableDocument,
    config_dir,
    from_json,
    to_json,
)
from clusterctl.node.paths import NodePaths
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock

_READ = 'if [ -e "$1" ]; then cat "$1"; fi'


def services_in(cluster: str, answer: Probe) -> dict[str, ServiceDocument]:
    """The services whose documents the probe brought, by name. Of one that cannot be read, what
    the supervisor read last, and goes on with."""
    directory = str(NodePaths(cluster).services)
    texts = {
        path: data.decode(errors="replace")
        for path, data in sorted(answer.files.items())
        if path.startswith(directory) and data is not None
    }
    for document in unreadable_in(cluster, answer):
        path = f"{config_dir(cluster)}/{document.file}"
        if path in texts:
            texts[path] = document.last_good
    found = [from_json(ServiceDocument, text) for text in texts.values() if text]
    return {document.name: document for document in found}


def unreadable_in(cluster: str, answer: Probe) -> list[UnreadableDocument]:
    """The documents among the probe's files that cannot be read, with what the supervisor still
    knows of them."""
    paths = NodePaths(cluster)
    state = read_state(answer.files.get(str(paths.state)))
    known = {document.file: document for document in state.unreadable} if state else {}
    found = []
    for path, data in sorted(answer.files.items()):
        kind = NodeDocument if path == str(paths.node_document) else ServiceDocument
        if data is None or not path.startswith(f"{paths.config}/"):
            continue
        try:
            from_json(kind, data.decode())
        except ValueError as error:
            file = path.removeprefix(f"{paths.config}/")
            last_good = known[file].last_good if file in known else ""
            found.append(UnreadableDocument(file, str(error), last_good))
    return found


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


def read_head_state(inventory: Inventory, head: Transport) -> NodeState | None:
    """The head's state, by the cheapest way: one small file."""
    file = str(NodePaths(inventory.cluster).state)
    return read_state(
        head.run(["cat", file], sudo=True, timeout=deadlines.SMALL_FILE).stdout.encode()
    )


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
