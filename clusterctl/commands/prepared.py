"""Old names of what is in survey/ now, until every command asks a Survey."""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.engine.step import HostView
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.network.gate import GateScope
from clusterctl.survey.cluster import Cluster, look_and_require
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import Done

__all__ = ("Cluster", "ground_of", "look_and_require", "views")


def views(
    inventory: Inventory, transports: Mapping[str, Transport], answers: Mapping[str, Probe]
) -> dict[str, HostView]:
    """What steps work on."""
    found = {name: Done(answer) for name, answer in answers.items()}
    return Survey(inventory, transports, found).views


def ground_of(cluster: Cluster) -> GateScope:
    """The hosts of a run that must be as promised."""
    return cluster.gate_scope
