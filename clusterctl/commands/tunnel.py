"""`tunnel`: forward a port of this machine to the dashboard on the head or to a service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from clusterctl.errors import ConnectionFailed, UsageError
from clusterctl.operations.session import Session
from clusterctl.serving.declaration import served_at
from clusterctl.survey.survey import take_survey
from clusterctl.transport.tcp import Tunnel

DASHBOARD = "dashboard"

LOOK_EVERY = 1.0  # seconds between two checks for connection errors


@contextmanager
def opened_tunnel(session: Session, target: str, local_port: int | None) -> Iterator[Tunnel]:
    """Open a tunnel from this machine to `target` until the end of the block. Without `local_port`,
    the local port has the same number as the remote one.

    Raises UsageError for an unknown service and for a port that is in use; ConnectionFailed if the
    head cannot be reached, or nothing listens on the remote port.
    """
    inventory = session.inventory
    with session.connected((inventory.head,)) as transports:
        head = transports[inventory.head.name]
        if target == DASHBOARD:
            address, port = "127.0.0.1", inventory.ray_ports.dashboard
        else:
            survey = take_survey(inventory, transports).require_answers()
            if target not in survey.services and target not in survey.replicas:
                known = ", ".join((DASHBOARD, *survey.services))
                raise UsageError(
                    f"there is no target {target}; targets: {known}"
                    if target
                    else f"to what? {known}",
                    hint=f"clusterctl tunnel {DASHBOARD}",
                )
            api = served_at(survey, target)
            address, port = api.address, api.port
        # Fail before a URL is shown if nothing listens there.
        head.open_tcp(address, port).close()
        wanted = port if local_port is None else local_port
        with Tunnel(head, address, port, local_port=wanted) as tunnel:
            yield tunnel


def wait(tunnel: Tunnel, report: Callable[[ConnectionFailed], None]) -> NoReturn:
    """Keep the tunnel open until Ctrl-C; call `report` once for each connection error."""
    reported: ConnectionFailed | None = None
    while True:
        time.sleep(LOOK_EVERY)
        if tunnel.last_error is not None and tunnel.last_error is not reported:
            reported = tunnel.last_error
            report(reported)
