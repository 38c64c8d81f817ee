"""A cluster that a run may change: a survey whose hosts are fit for use, and everyone's place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, RequirementsNotMet, raise_all
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.network.gate import GateScope
from clusterctl.ray_cluster.topology import Node, Topology
from clusterctl.survey.requirements import name_listeners, requirements
from clusterctl.survey.survey import Survey


@dataclass(frozen=True)
class Cluster:
    """The hosts of a survey that answered; those of `held` meet the requirements."""

    survey: Survey
    topology: Topology
    views: Mapping[str, HostView]
    held: tuple[str, ...]  # hosts that must be as promised: those that --limit left, and the head

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
        """The hosts whose fabric must carry collectives: those of `held`."""
        transports = {name: view.transport for name, view in self.views.items()}
        facts = {name: view.facts for name, view in self.views.items()}
        return GateScope(self.inventory, self.topology, transports, facts).only(self.held)

    @property
    def head(self) -> HostView:
        return self.views[self.inventory.head.name]


def require_fit(survey: Survey, hosts: Iterable[Host]) -> Cluster:
    """The cluster of a survey in which `hosts` and the head answer and meet the requirements.

    Raises, of all of these together: ConnectionFailed, then RequirementsNotMet; the latter too
    for another host that is silent and whose place in the cluster its inventory does not tell.
    """
    held = tuple(host.name for host in survey.inventory.with_head({host.name for host in hosts}))
    survey.require_answers(held)
    lacking = requirements(survey, held)
    name_listeners(lacking, survey.transports)
    raise_all([*lacking, *survey.strangers])
    return Cluster(survey, topology_of(survey), survey.views, held)


def topology_of(survey: Survey) -> Topology:
    """Places of all hosts. Whether RDMA is used is decided by those that answered."""
    inventory = survey.inventory
    answered = tuple(host for host in inventory.hosts if host.name in survey.facts)
    known = resolve(inventory.model_copy(update={"hosts": answered}), survey.facts)
    nodes: list[Node] = []
    problems: list[ClusterctlError] = []
    for host in inventory.hosts:
        try:
            nodes.append(known.node(host.name) if host in answered else unseen(inventory, host))
            _insist_on_own_address(nodes)
        except RequirementsNotMet as problem:
            problems.append(problem)
    raise_all(problems)
    return Topology(tuple(nodes))


def unseen(inventory: Inventory, host: Host) -> Node:
    """The place of a host that is silent, from its inventory alone; interfaces not known.

    Raises RequirementsNotMet when its node IP or GPUs depend on what only the host can tell.
    """
    address = host.node_ip or _address(inventory, host)
    counted = accelerator_named(inventory.accelerator).counted
    if address is None or (counted and not host.gpus):
        lacking, key = ("GPUs", "gpus") if address else ("node IP", "node_ip")
        raise RequirementsNotMet(
            f"it does not answer, and without it its {lacking} cannot be told, which the others "
            "must know",
            host=host.name,
            hint=f"give hosts.{host.name}.{key} in the inventory, or take the host out of it",
        )
    return Node(host.name, host.role, address, "", (), "", (), len(host.gpus))


def _insist_on_own_address(nodes: Sequence[Node]) -> None:
    """The last of `nodes` shares its node IP with none before it."""
    last = nodes[-1]
    owner = next((node for node in nodes[:-1] if node.node_ip == last.node_ip), None)
    if owner:
        raise RequirementsNotMet(
            f"its node IP {last.node_ip} is also the one of {owner.host}",
            host=last.host,
            hint=f"give hosts.{last.host}.node_ip its own address",
        )


def _address(inventory: Inventory, host: Host) -> str | None:
    """What SSH connects to, where that is the node IP: see `network.choice`."""
    try:
        address = ip_address(host.address)
    except ValueError:
        return None
    subnet = inventory.network.subnet
    if host.nics.control or (subnet and address not in subnet):
        return None
    return str(address)
