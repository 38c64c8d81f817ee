"""Transports to hosts, for the time of one run; and what every host says, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import RequirementsNotMet, raise_all
from clusterctl.facts.gather import probe
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import NodeState, from_json
from clusterctl.node.paths import NodePaths
from clusterctl.transport.base import Transport
from clusterctl.transport.connect import Connections
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Outcome, failures, fan_out, values


@contextmanager
def reach(
    hosts: Iterable[Host], credentials: Credentials, *, connect_timeout: float | None = None
) -> Iterator[dict[str, Transport]]:
    """A transport per host, by name; they connect at first use and are closed at the end."""
    with Connections(credentials, connect_timeout=connect_timeout) as connections:
        yield {host.name: connections.to(host) for host in hosts}


def look(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    *,
    files: Iterable[str] = (),
    limit: int = deadlines.FACTS_COMMAND,
    timeout: float = deadlines.FACTS,
) -> dict[str, Outcome[Probe]]:
    """Probe hosts in one round trip each; a host that cannot be probed has its error.

    `limit` and `timeout`: seconds for one command there, and for the whole of a host.
    """
    wanted = tuple(files)
    gpu_probe = accelerator_named(inventory.accelerator).gpu_probe
    return fan_out(
        transports,
        lambda transport: probe(
            transport,
            disks=("/", inventory.models),
            files=wanted,
            image=inventory.image,
            gpu_probe=gpu_probe,
            limit=limit,
            timeout=timeout,
        ),
    )


def look_at_all(
    inventory: Inventory, transports: Mapping[str, Transport], *, files: Iterable[str] = ()
) -> dict[str, Probe]:
    """Probe hosts that must all answer. Raises the errors of all that did not."""
    outcomes = look(inventory, transports, files=files)
    raise_all(failures(outcomes))
    return values(outcomes)


def node_files(cluster: str) -> tuple[str, ...]:
    """The files on a host that tell what its node is to be and, on the head, what to serve, and
    what it is. Patterns for the probe among them."""
    paths = NodePaths(cluster)
    return str(paths.node_document), str(paths.state), f"{paths.services}/*.json"


def read_state(data: bytes | None) -> NodeState | None:
    """The supervisor's state; None when there is none yet, or it is of another version."""
    if data is None:
        return None
    try:
        return from_json(NodeState, data.decode())
    except ValueError:
        return None


def require_bootstrapped(inventory: Inventory, state: NodeState | None, clock: float) -> NodeState:
    """The head's state, or RequirementsNotMet that says how to get one that is of now.

    `clock`: Unix seconds on that host, whose clock the supervisor writes by.
    """
    host = inventory.head.name
    if state is None:
        raise RequirementsNotMet(
            "no node container reports from there: the cluster is not up",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
    if clock - state.time > deadlines.STALE:
        raise RequirementsNotMet(
            f"the supervisor last wrote {clock - state.time:.0f} s ago: it has ended, or hangs",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
    return state
