"""`exec`: one command on many hosts at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterctl.inventory.model import Host, Inventory
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.transport.base import CommandResult
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Outcome, fan_out
from clusterctl.workflows.reach import reach


def run(
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    command: Sequence[str],
    *,
    sudo: bool,
    node: bool,
    timeout: float,
) -> dict[str, Outcome[CommandResult]]:
    """What `command` did on each host, or why it could not run there to its end.

    `node` runs it inside the node container. `timeout` in seconds.
    """
    inside = ("docker", "exec", container_name(inventory.cluster)) if node else ()
    with reach(hosts, credentials) as transports:
        return fan_out(
            transports,
            lambda transport: transport.run(
                [*inside, *command], sudo=sudo or node, timeout=timeout
            ),
        )
