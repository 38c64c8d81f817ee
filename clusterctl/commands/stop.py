"""`stop`: end one service; the cluster stays."""

from __future__ import annotations

from clusterctl.engine.events import EventSink
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import ServiceDocument
from clusterctl.serving.declaration import HeadServices, require_service, service_file
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


def run(inventory: Inventory, name: str, credentials: Credentials, sink: EventSink) -> None:
    """Stop the service called `name` and wait until it has ended.

    Raises UsageError if it does not exist, RequirementsNotMet if no supervisor runs on the head,
    StepFailed if it does not end.
    """
    with connected((inventory.head,), credentials) as transports:
        head = transports[inventory.head.name]

        def look() -> tuple[ServiceDocument, bytes | None]:
            survey = take_survey(inventory, transports)
            survey.require_supervised_head()
            document = require_service(name, survey.services)
            return document, survey.head_file(service_file(inventory.cluster, name))

        look()  # refuse an unknown name without waiting for the lock
        with ClusterLock(head, inventory.cluster, "stop") as lock:
            document, file = look()
            HeadServices(inventory, head, sink).stop(lock, document, file)
