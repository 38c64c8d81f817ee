"""Old names of what is in survey/ now, until every command asks a Survey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.node.files import NodePaths
from clusterctl.survey.survey import connected as reach
from clusterctl.survey.survey import (
    read_head_state,
    read_state,
    require_bootstrapped,
    services_in,
    take_survey,
    unreadable_in,
)
from clusterctl.transport.base import Transport

__all__ = (
    "look_at_all",
    "node_files",
    "reach",
    "read_head_state",
    "read_state",
    "require_bootstrapped",
    "services_in",
    "unreadable_in",
)


def look_at_all(
    inventory: Inventory, transports: Mapping[str, Transport], *, files: Iterable[str] = ()
) -> dict[str, Probe]:
    """Probe hosts that must all answer. Raises the errors of all that did not."""
    return take_survey(inventory, transports, files=files).require_answers().answers


def node_files(cluster: str) -> tuple[str, ...]:
    """The node's own documents, as patterns for the probe."""
    paths = NodePaths(cluster)
    return str(paths.node_document), str(paths.state), f"{paths.services}/*.json"
