"""Ending all replicas of a service."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.engine.events import EventSink
from clusterctl.errors import raise_all
from clusterctl.node.documents import ServiceDocument
from clusterctl.serving.declaration import HostServices, members_file, service_file
from clusterctl.survey.survey import Survey
from clusterctl.transport.fanout import failures, fan_out
from clusterctl.transport.lock import ClusterLock


def end(
    survey: Survey,
    name: str,
    documents: Sequence[ServiceDocument],
    lock: ClusterLock,
    sink: EventSink,
) -> None:
    """Stop these replicas of the service, all there are, and take it out of the gateway. Raises
    StepFailed for replicas that do not end, after the others have."""
    inventory = survey.inventory

    def stop(document: ServiceDocument) -> None:
        host = survey.host_of(document.name)
        file = survey.answers[host].files.get(service_file(inventory.cluster, document.name))
        HostServices(inventory, survey.transports[host], sink).stop(lock, document, file)

    stopped = fan_out({document.name: document for document in documents}, stop)
    raise_all([*failures(stopped), *survey.errors.values()])
    path = members_file(inventory.cluster, name)
    if survey.head_file(path) is not None:
        lock.replace(path, None, before=survey.head_file(path))
