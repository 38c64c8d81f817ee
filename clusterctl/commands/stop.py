"""`stop`: end one service; the cluster stays."""

from __future__ import annotations

from clusterctl.commands.declared import (
    look_at_supervised,
    require_service,
    service_file,
    services_in,
    stop_service,
)
from clusterctl.commands.reach import reach
from clusterctl.engine.events import EventSink
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import ServiceDocument
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


def run(inventory: Inventory, name: str, credentials: Credentials, sink: EventSink) -> None:
    """Stop the service called `name` and wait for its end.

    Raises UsageError when there is none of that name, RequirementsNotMet when
    no supervisor works on the head, StepFailed when it does not end.
    """
    with reach((inventory.head,), credentials) as transports:
        head = transports[inventory.head.name]

        def look() -> tuple[ServiceDocument, bytes | None]:
            answer = look_at_supervised(inventory, head)
            document = require_service(name, services_in(inventory.cluster, answer))
            return document, answer.files.get(service_file(inventory.cluster, name))

        look()  # a name that does not exist is told without waiting for anyone
        with ClusterLock(head, inventory.cluster, "stop") as lock:
            document, file = look()
            stop_service(inventory, head, lock, document, file, sink)
