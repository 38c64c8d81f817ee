"""What every run that changes hosts begins with: facts of all, requirements, topology, views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterctl.engine.step import HostView
from clusterctl.errors import raise_all
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.ray_cluster.topology import Topology, resolve
from clusterctl.transport.base import Transport
from clusterctl.workflows.check import requirements
from clusterctl.workflows.reach import look_at_all


@dataclass(frozen=True)
class Cluster:
    """All hosts of an inventory, looked at and fit for use."""

    inventory: Inventory
    topology: Topology
    answers: Mapping[str, Probe]
    views: Mapping[str, HostView]

    @property
    def head(self) -> HostView:
        return self.views[self.inventory.head.name]


def look_and_require(
    inventory: Inventory, transports: Mapping[str, Transport], *, files: Iterable[str] = ()
) -> Cluster:
    """Look at every host.

    Raises, of all hosts together: ConnectionFailed, then RequirementsNotMet.
    """
    answers = look_at_all(inventory, transports, files=files)
    raise_all(requirements(inventory, answers))
    topology = resolve(inventory, {name: answer.facts for name, answer in answers.items()})
    return Cluster(inventory, topology, answers, views(inventory, transports, answers))


def views(
    inventory: Inventory, transports: Mapping[str, Transport], answers: Mapping[str, Probe]
) -> dict[str, HostView]:
    """What steps work on."""
    return {
        host.name: HostView(host, answers[host.name].facts, transports[host.name])
        for host in inventory.hosts
        if host.name in answers
    }
