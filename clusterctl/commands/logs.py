"""`logs`: files that supervisors write on hosts, merged in order of arrival."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from clusterctl import deadlines
from clusterctl.errors import (
    ClusterctlError,
    RequirementsNotMet,
    UsageError,
    raise_all,
)
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import (
    MembersDocument,
    from_json,
    is_standby,
    replica_name,
    service_of,
    standby_name,
)
from clusterctl.node.files import NodePaths
from clusterctl.operations.session import Session
from clusterctl.serving.declaration import members_file
from clusterctl.transport import log_reader, python
from clusterctl.transport.base import Transport
from clusterctl.transport.base import lines as lines_of

READER = python.Program("clusterctl.transport", ("log_reader",))

_Item: TypeAlias = str | ClusterctlError | None
_Arriving: TypeAlias = "queue.SimpleQueue[tuple[str, _Item]]"


class _NoSuchLog(RequirementsNotMet):
    """A host has no such log; `there` lists the logs that it has."""

    def __init__(self, log: str, host: str, there: tuple[str, ...]) -> None:
        super().__init__(f"it has no {log}", host=host, hint="clusterctl status")
        self.there = there


def log_file(inventory: Inventory, name: str | None) -> str:
    """Return the path of the log `name` on a host. Raises UsageError for a name that is a path."""
    paths = NodePaths(inventory.cluster)
    if name is None:
        return str(paths.journal)
    if "/" in name or name.startswith("."):
        raise UsageError(f"{name} is not the name of a service", hint="clusterctl status")
    return str(paths.log(name))


def read(
    session: Session,
    name: str | None,
    *,
    lines: int,
    follow: bool,
    report: Callable[[ClusterctlError], None],
) -> Iterator[tuple[str, str]]:
    """Yield (host, line): each host's last `lines`, then, with `follow`, new lines as they arrive.

    A service's log is on the head, and its replicas' logs are on their hosts: then `host` is
    followed by the replica's name. `report` is called with each host's error as it occurs, since
    with `follow` there may be no end. Raises the errors of all hosts at the end, or UsageError with
    the names of existing logs if no host has this one.
    """
    inventory = session.inventory
    file = log_file(inventory, name)
    of_service = name is not None and name != "ray"
    hosts = inventory.hosts if of_service else session.hosts
    failed: list[ClusterctlError] = []
    arriving: _Arriving = queue.SimpleQueue()
    with session.connected(hosts) as transports:
        sources = [(host, host, file) for host in transports]
        if name is not None and of_service:
            sources = _replicas(inventory, transports[inventory.head.name], name)
        for label, host, path in sources:
            order = {"path": path, "lines": lines, "follow": follow}
            arguments = (label, transports[host], order, name, arriving)
            threading.Thread(target=_pump, args=arguments, name=f"logs-{host}", daemon=True).start()

        for host, item in _until_all_ended(arriving, len(sources)):
            if isinstance(item, str):
                yield host, item
            else:
                failed.append(item)
                report(item)

    missing = [error for error in failed if isinstance(error, _NoSuchLog)]
    if name is not None and len(missing) == len(sources):
        there = ", ".join(sorted({log for error in missing for log in error.there})) or "none"
        raise UsageError(f"there is no log {name}; logs: {there}", hint="clusterctl status")
    raise_all(failed)


def _until_all_ended(
    arriving: _Arriving, running: int
) -> Iterator[tuple[str, str | ClusterctlError]]:
    while running:
        host, item = arriving.get()
        if item is None:
            running -= 1
        else:
            yield host, item


def _replicas(inventory: Inventory, head: Transport, name: str) -> list[tuple[str, str, str]]:
    """Return label, host and log of each replica of the service `name`, or of the replica `name`;
    for a service without replicas, those of its log on the head."""
    paths = NodePaths(inventory.cluster)
    own = (head.host.name, head.host.name, str(paths.log(name)))
    data = head.read_file(members_file(inventory.cluster, service_of(name)))
    if data is None:
        return [own]
    try:
        members = from_json(MembersDocument, data.decode()).members
    except ValueError:
        return [own]
    known = {host.name for host in inventory.hosts}
    found = [(each.host, replica_name(service_of(name), each.replica)) for each in members]
    if is_standby(name):  # Only by its own name: it may not have started yet
        found = [(host, standby_name(replica)) for host, replica in found]
    chosen = [
        (f"{host} {replica}", host, str(paths.log(replica)))
        for host, replica in found
        if host in known and name in (replica, service_of(replica))
    ]
    return chosen or [own]


def _pump(
    host: str, transport: Transport, order: object, name: str | None, arriving: _Arriving
) -> None:
    try:
        with python.start(transport, READER, order, sudo=True) as channel:
            for line in lines_of(channel):
                arriving.put((host, line))
            status = -1
            with contextlib.suppress(TimeoutError):
                status = channel.wait(deadlines.LOGS_STATUS)
            if status == log_reader.MISSING:
                said = channel.stderr_tail().strip()
                log = "journal" if name is None else f"log {name}"
                raise _NoSuchLog(log, host, tuple(said.splitlines()))
            if status:
                raise python.failure(channel, "reading the log", transport.host.name)
    except ClusterctlError as error:
        error.host = error.host or host
        arriving.put((host, error))
    finally:
        arriving.put((host, None))
