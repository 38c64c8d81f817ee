"""`exec`: run one command on many hosts at once."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.containers.drivers import driver_for
from clusterctl.operations.session import Session
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.transport.base import CommandResult, Transport
from clusterctl.transport.fanout import Outcome, fan_out


def run(
    session: Session, command: Sequence[str], *, sudo: bool, node: bool, timeout: float
) -> dict[str, Outcome[CommandResult]]:
    """Return each host's result of `command`, or the error that prevented it from finishing.

    `node` runs it inside the node container. `timeout` in seconds.
    """

    def run_there(transport: Transport) -> CommandResult:
        if node:
            name = container_name(session.inventory.cluster)
            return driver_for(transport).exec(name, command, timeout=timeout)
        return transport.run(command, sudo=sudo, timeout=timeout)

    with session.connected(session.hosts) as transports:
        return fan_out(transports, run_there)
