"""`logs`: files that supervisors write on hosts, merged in order of arrival."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from clusterctl import deadlines
from clusterctl.errors import (
    ClusterctlError,
    CommandFailed,
    ConnectionFailed,
    RequirementsNotMet,
    UsageError,
    raise_all,
)
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.files import NodePaths
from clusterctl.survey.survey import connected
from clusterctl.transport.base import Transport
from clusterctl.transport.base import lines as lines_of
from clusterctl.transport.credentials import Credentials

# The log's name is passed as a parameter only, never as part of the script.
_TAIL = """\
[ ! -e "$2" ] || exec tail -n "$1" $3 "$2"
cd "$4" 2>/dev/null && for log in *.log; do [ ! -e "$log" ] || echo "${log%.log}" >&2; done
exit 66
"""
_MISSING = 66  # EX_NOINPUT of sysexits.h

_Item: TypeAlias = str | ClusterctlError | None
_Arriving: TypeAlias = "queue.SimpleQueue[tuple[str, _Item]]"


class _NoSuchLog(RequirementsNotMet):
    """A host has no such log; `there` lists the logs that it has."""

    def __init__(self, log: str, host: str, there: tuple[str, ...]) -> None:
        super().__init__(f"there is no {log} there", host=host, hint="clusterctl status")
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
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    name: str | None,
    *,
    lines: int,
    follow: bool,
    report: Callable[[ClusterctlError], None],
) -> Iterator[tuple[str, str]]:
    """Yield (host, line): each host's last `lines`, then, with `follow`, new lines as they arrive.

    A service's log is on the head only. `report` is called with each host's error when it occurs,
    since with `follow` the end may never come. Raises the errors of all hosts at the end, or
    UsageError with the names of existing logs if no host has this one.
    """
    file = log_file(inventory, name)
    if name not in {None, "ray"}:
        hosts = (inventory.head,)
    directory = str(NodePaths(inventory.cluster).logs)
    argv = ["sh", "-c", _TAIL, "logs", str(lines), file, "-F" if follow else "", directory]
    failed: list[ClusterctlError] = []
    arriving: _Arriving = queue.SimpleQueue()
    with connected(hosts, credentials) as transports:
        for host, transport in transports.items():
            arguments = (host, transport, argv, name, arriving)
            threading.Thread(target=_pump, args=arguments, name=f"logs-{host}", daemon=True).start()
        running = len(transports)
        while running:
            host, item = arriving.get()
            if item is None:
                running -= 1
            elif isinstance(item, str):
                yield host, item
            else:
                failed.append(item)
                report(item)
    missing = [error for error in failed if isinstance(error, _NoSuchLog)]
    if name is not None and len(missing) == len(transports):
        there = ", ".join(sorted({log for error in missing for log in error.there})) or "none"
        raise UsageError(f"no log is named {name}; logs: {there}", hint="clusterctl status")
    raise_all(failed)


def _pump(
    host: str, transport: Transport, argv: list[str], name: str | None, arriving: _Arriving
) -> None:
    try:
        with transport.open_channel(argv, sudo=True) as channel:
            for line in lines_of(channel):
                arriving.put((host, line))
            status = -1
            with contextlib.suppress(TimeoutError):
                status = channel.wait(deadlines.LOGS_STATUS)
            said = channel.stderr_tail().strip()
            if status == _MISSING:
                log = "journal" if name is None else f"log {name}"
                raise _NoSuchLog(log, host, tuple(said.splitlines()))
            if status == -1:
                lost = "the connection was lost"
                raise ConnectionFailed(lost, host=host, hint="clusterctl status")
            if status:
                raise CommandFailed(
                    f"tail ended with status {status}",
                    host=host,
                    hint="clusterctl status",
                    detail=said or None,
                )
    except ClusterctlError as error:
        error.host = error.host or host
        arriving.put((host, error))
    finally:
        arriving.put((host, None))
