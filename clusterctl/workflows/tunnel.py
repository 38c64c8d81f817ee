"""`tunnel`: a port of this machine that leads to the dashboard or a service on the head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.inventory.model import Inventory
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.tunnel import Tunnel
from clusterctl.workflows.declared import look_at_head, require_service
from clusterctl.workflows.reach import reach

DASHBOARD = "dashboard"


@contextmanager
def opened_tunnel(
    inventory: Inventory, credentials: Credentials, target: str, local_port: int | None
) -> Iterator[int]:
    """The local port that leads to `target` for the time of the block; by default the same
    number as over there. Raises UsageError for an unknown service and for a taken port."""
    with reach((inventory.head,), credentials) as transports:
        head = transports[inventory.head.name]
        if target == DASHBOARD:
            address, port = "127.0.0.1", inventory.ray_ports.dashboard
        else:
            _, declared = look_at_head(inventory, head)
            document = require_service(target, declared)
            address, port = document.host, document.port
        wanted = port if local_port is None else local_port
        with Tunnel(head, address, port, local_port=wanted) as tunnel:
            yield tunnel.port
