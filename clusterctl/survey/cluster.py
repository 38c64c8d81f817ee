"""A cluster that a run may change: a survey whose hosts meet the requirements, and its topology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, RequirementsNotMet, raise_all
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.network.gate import GateScope
from clusterctl.ray_cluster.topology import Node, Topology, shared_addresses
from clusterctl.survey.requirements import name_listeners, requirements
from clusterctl.survey.survey import Survey


@dataclass(frozen=True)
class Cluster:
    """The hosts of a survey that answered; those in `held` meet the requirements."""

    survey: Survey
    topology: Topology
    views: Mapping[str, HostView]
    held: tuple[str, ...]  # must meet the requirements: hosts of --limit, and the head

    @property
    def inventory(self) -> Inventory:
        return self.survey.inventory

    @property
    def answers(self) -> Mapping[str, Probe]:
        return self.survey.answers

    @property
    def left_out(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.inventory.hosts if host.name not in self.held)

    @property
    def gate_scope(self) -> GateScope:
        """Scope of the fabric gate: the hosts in `held`."""
        transports = {name: view.transport for name, view in self.views.items()}
        facts = {name: view.facts for name, view in self.views.items()}
        return GateScope(self.inventory, self.topology, transports, facts).only(self.held)

    @property
    def head(self) -> HostView:
        return self.views[self.inventory.head.name]


def require_fit(survey: Survey, hosts: Iterable[Host]) -> Cluster:
    """Return the cluster, once `hosts` and the head answer and meet the requirements.

    Raises the errors of all these: ConnectionFailed, then RequirementsNotMet; the latter also for
    another host that does not answer and whose inventory does not give its node IP and GPUs.
    """
    held = tuple(host.name for host in survey.inventory.with_head({host.name for host in hosts}))
    survey.require_answers(held)
    lacking = requirements(survey, held)
    name_listeners(lacking, survey.transports)
    raise_all([*lacking, *survey.strangers])
    return Cluster(survey, topology_of(survey), survey.views, held)


def topology_of(survey: Survey) -> Topology:
    """Return the topology of all hosts. Only those that answered decide whether RDMA is used."""
    inventory = survey.inventory
    answered = tuple(host for host in inventory.hosts if host.name in survey.facts)
    known = resolve(inventory.model_copy(update={"hosts": answered}), survey.facts)
    nodes: list[Node] = []
    problems: list[ClusterctlError] = []
    for host in inventory.hosts:
        try:
            nodes.append(known.node(host.name) if host in answered else unseen(inventory, host))
        except RequirementsNotMet as problem:
            problems.append(problem)
    raise_all([*problems, *shared_addresses(nodes)])
    return Topology(tuple(nodes))


def unseen(inventory: Inventory, host: Host) -> Node:
    """Return the node of a host that does not answer, from its inventory; its interfaces are empty.

    Raises RequirementsNotMet if the inventory does not give its node IP and GPUs.
    """
    address = host.node_ip or _address(inventory, host)
    counted = accelerator_named(inventory.accelerator).counted
    if address is None or (counted and not host.gpus):
        lacking, key = ("GPUs", "gpus") if address else ("node IP", "node_ip")
        raise RequirementsNotMet(
            f"it does not answer, so its {lacking}, needed by the other hosts, cannot be "
            "determined",
            host=host.name,
            hint=f"give hosts.{host.name}.{key} in the inventory, or take the host out of it",
        )
    return Node(host.name, host.role, address, "", (), "", (), len(host.gpus))


def _address(inventory: Inventory, host: Host) -> str | None:
    """The address that SSH connects to if that is the node IP (see `network.choice`), else None."""
    try:
        address = ip_address(host.address)
    except ValueError:
        return None
    subnet = inventory.network.subnet
    if host.nics.control or (subnet and address not in subnet):
        return None
    return str(address)
