"""`exec`: run one command on many hosts at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterctl.containers.drivers import driver_for
from clusterctl.inventory.model import Host, Inventory
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.survey.survey import connected
from clusterctl.transport.base import CommandResult, Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Outcome, fan_out


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
    """Return each host's result of `command`, or the error that prevented it from finishing.

    `node` runs it inside the node container. `timeout` in seconds.
    """

    def run_there(transport: Transport) -> CommandResult:
        if node:
            name = container_name(inventory.cluster)
            return driver_for(transport).exec(name, command, timeout=timeout)
        return transport.run(command, sudo=sudo, timeout=timeout)

    with connected(hosts, credentials) as transports:
        return fan_out(transports, run_there)
