"""Which address and which interfaces every host uses. Pure: inventory and facts in, data out.

The address that Ray is given decides over everything else: gRPC, the queues of vLLM's
executor and the store of torch.distributed all bind to the node's IP. A node whose Ray
address differs from VLLM_HOST_IP, or two nodes with the same one, is the classic way to wait
forever for GPUs (vllm issues 7815 and 13521).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import ClusterctlError, RequirementsNotMet, raise_all
from clusterctl.facts.candidates import speed_of
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory, Role
from clusterctl.ray_cluster.addresses import Chosen, named_address
from clusterctl.ray_cluster.network_choice import NetworkChoice, choose_network
from clusterctl.ray_cluster.rdma_choice import RdmaChoice, choose_rdma

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """One host's place in the cluster."""

    host: str
    role: Role
    node_ip: str
    control_nic: str
    """The interface that holds `node_ip`."""
    nccl_nics: tuple[str, ...]
    gloo_nic: str
    rdma: tuple[str, ...]
    """Ports of RDMA devices, such as mlx5_0:1; empty on every node unless every node has some."""
    gpus: int
    speed: int | None = None
    """Mbit/s of `control_nic`, if known."""
    explain: tuple[str, ...] = ()
    """How each of these was chosen, a line each."""


@dataclass(frozen=True)
class Topology:
    """Every node, in the order of the inventory."""

    nodes: tuple[Node, ...]

    @property
    def head(self) -> Node:
        return next(node for node in self.nodes if node.role == "head")

    def node(self, host: str) -> Node:
        """The node of that host. Raises KeyError."""
        for node in self.nodes:
            if node.host == host:
                return node
        raise KeyError(host)


def resolve(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Topology:
    """The topology of all hosts. Raises RequirementsNotMet, or Problems with several."""
    named = _each(inventory, lambda host: _named(inventory, host, facts.get(host.name)))
    known = {host.name: facts[host.name] for host in inventory.hosts}
    network = choose_network(inventory, known, named)
    rdma = choose_rdma(inventory, known)
    nodes = _each(inventory, lambda host: _node(inventory, host, known[host.name], network, rdma))
    raise_all(_shared_addresses(nodes.values()))
    return Topology(tuple(nodes.values()))


def _each(inventory: Inventory, work: Callable[[Host], T]) -> dict[str, T]:
    """`work` of every host, by name. Raises the problems of all of them together."""
    found: dict[str, T] = {}
    problems: list[ClusterctlError] = []
    for host in inventory.hosts:
        try:
            found[host.name] = work(host)
        except RequirementsNotMet as problem:
            problems.append(problem)
    raise_all(problems)
    return found


def _named(inventory: Inventory, host: Host, facts: HostFacts | None) -> Chosen | None:
    """The node IP that the inventory says; what it names must be there."""
    if facts is None:
        raise RequirementsNotMet(
            "its interfaces are not known, since it could not be probed",
            host=host.name,
            hint=f"clusterctl check --limit {host.name}",
        )
    for purpose, nic in (("nccl", host.nics.nccl), ("gloo", host.nics.gloo)):
        if nic:
            _require_usable(host, facts, purpose, nic)
    _require_rdma(host, facts)
    return named_address(inventory, host, facts)


def _node(
    inventory: Inventory, host: Host, facts: HostFacts, network: NetworkChoice, rdma: RdmaChoice
) -> Node:
    address = network.control[host.name]
    nccl, gloo = network.nccl[host.name], network.gloo[host.name]
    for purpose, nic in (("nccl", nccl.nic), ("gloo", gloo.nic)):
        _require_usable(host, facts, purpose, nic)
    return Node(
        host=host.name,
        role=host.role,
        node_ip=address.ip,
        control_nic=address.nic,
        nccl_nics=(nccl.nic,),
        gloo_nic=gloo.nic,
        rdma=rdma.ports[host.name],
        gpus=len(host.gpus) or _gpus_found(inventory, facts),
        speed=speed_of(facts, address.nic),
        explain=(
            f"node IP {address.ip} on {address.nic}: {address.reason}",
            f"NCCL on {nccl.nic}: {nccl.reason}",
            f"Gloo on {gloo.nic}: {gloo.reason}",
            rdma.reasons[host.name],
        ),
    )


def _gpus_found(inventory: Inventory, facts: HostFacts) -> int:
    """What an inventory that promises nothing for a host gets: every GPU it has."""
    return len(facts.gpus.gpus) if accelerator_named(inventory.accelerator).counted else 0


def _require_usable(host: Host, facts: HostFacts, purpose: str, name: str) -> None:
    nic = facts.nic(name)
    if nic is None:
        raise RequirementsNotMet(
            f"nics.{purpose} names {name}, and there is no such interface",
            host=host.name,
            hint=f"name one of {_names(facts)} under hosts.{host.name}.nics.{purpose}",
        )
    if nic.state == "down":
        raise RequirementsNotMet(
            f"interface {name}, chosen for {purpose}, is down",
            host=host.name,
            hint=f"ip link set {name} up",
        )


def _require_rdma(host: Host, facts: HostFacts) -> None:
    found = [device.name for device in facts.rdma]
    missing = [name for name in host.nics.rdma or () if name not in found]
    if missing:
        raise RequirementsNotMet(
            f"nics.rdma names {', '.join(missing)}, and there is no such RDMA device",
            host=host.name,
            hint=f"found: {', '.join(found) or 'none'}; correct hosts.{host.name}.nics.rdma",
        )


def _names(facts: HostFacts) -> str:
    return ", ".join(nic.name for nic in facts.nics if nic.kind != "loopback")


def _shared_addresses(nodes: Iterable[Node]) -> list[ClusterctlError]:
    """One problem for every host whose node IP an earlier host already has."""
    owners: dict[str, str] = {}
    problems: list[ClusterctlError] = []
    for node in nodes:
        owner = owners.setdefault(node.node_ip, node.host)
        if owner != node.host:
            problems.append(
                RequirementsNotMet(
                    f"its node IP {node.node_ip} is also the one of {owner}",
                    host=node.host,
                    hint=f"give hosts.{node.host}.node_ip its own address",
                )
            )
    return problems
