"""`stop`: end one service; the cluster stays."""

from __future__ import annotations

from clusterctl.engine.events import EventSink
from clusterctl.inventory.model import Inventory
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock
from clusterctl.workflows.declared import look_at_supervised, require_service, stop_service
from clusterctl.workflows.reach import reach


def run(inventory: Inventory, name: str, credentials: Credentials, sink: EventSink) -> None:
    """Stop the service called `name` and wait for its end.

    Raises UsageError when there is none of that name, RequirementsNotMet when
    no supervisor works on the head, StepFailed when it does not end.
    """
    with reach((inventory.head,), credentials) as transports:
        head = transports[inventory.head.name]
        declared = look_at_supervised(inventory, head)
        document = require_service(name, declared)
        with ClusterLock(head, inventory.cluster, "stop"):
            stop_service(inventory, head, document, sink)
