"""`logs`: files that supervisors write on hosts, merged as they come."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.paths import NodePaths
from clusterctl.transport.base import Transport
from clusterctl.transport.base import lines as lines_of
from clusterctl.transport.credentials import Credentials
from clusterctl.workflows.reach import reach

# The name of the log is data: it reaches the script as a parameter only.
_TAIL = 'if [ -e "$2" ]; then exec tail -n "$1" $3 "$2"; else echo "no such log: $2" >&2; fi'


def log_file(inventory: Inventory, name: str | None) -> str:
    """Where the log called `name` is on a host. Raises UsageError for a name that is a path."""
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
) -> Iterator[tuple[str, str]]:
    """(host, line) pairs: each host's last `lines`, then, with `follow`, what comes.

    A service's log is on the head alone. Raises what a host's connection raises, at the end.
    """
    file = log_file(inventory, name)
    if name not in {None, "ray"}:
        hosts = (inventory.head,)
    arguments = [str(lines), file, *(["-F"] if follow else [""])]
    with reach(hosts, credentials) as transports:
        yield from _merged(transports, ["sh", "-c", _TAIL, "logs", *arguments])


def _merged(transports: dict[str, Transport], argv: list[str]) -> Iterator[tuple[str, str]]:
    arriving: queue.SimpleQueue[tuple[str, str | ClusterctlError | None]] = queue.SimpleQueue()

    def pump(name: str, transport: Transport) -> None:
        try:
            with transport.open_channel(argv, sudo=True) as channel:
                for line in lines_of(channel):
                    arriving.put((name, line))
                if text := channel.stderr_tail().strip():
                    arriving.put((name, text))
        except ClusterctlError as error:
            arriving.put((name, error))
        finally:
            arriving.put((name, None))

    for name, transport in transports.items():
        threading.Thread(target=pump, args=(name, transport), daemon=True).start()
    yield from _until_all_end(arriving, len(transports))


def _until_all_end(
    arriving: queue.SimpleQueue[tuple[str, str | ClusterctlError | None]], running: int
) -> Iterator[tuple[str, str]]:
    failed: ClusterctlError | None = None
    while running:
        name, item = arriving.get()
        if item is None:
            running -= 1
        elif isinstance(item, ClusterctlError):
            failed = failed or item
        else:
            yield name, item
    if failed:
        raise failed
