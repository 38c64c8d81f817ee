"""Which address and which interfaces every host uses. Pure: inventory and facts in, data out.

The address that Ray is given decides over everything else: gRPC, the queues of vLLM's
executor and the store of torch.distributed all bind to the node's IP. A node whose Ray
address differs from VLLM_HOST_IP, or two nodes with the same one, is the classic way to wait
forever for GPUs (vllm issues 7815 and 13521).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from clusterctl.errors import ClusterctlError, RequirementsNotMet, raise_all
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory, Role
from clusterctl.ray_cluster.addresses import choose_address


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
    """RDMA devices with an active port; empty on every node unless every node has some."""
    gpus: int
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
    problems: list[ClusterctlError] = []
    nodes: list[Node] = []
    for host in inventory.hosts:
        try:
            nodes.append(_node(inventory, host, facts.get(host.name)))
        except RequirementsNotMet as problem:
            problems.append(problem)
    problems.extend(_shared_addresses(nodes))
    raise_all(problems)
    return Topology(_with_common_rdma(nodes))


def _node(inventory: Inventory, host: Host, facts: HostFacts | None) -> Node:
    if facts is None:
        raise RequirementsNotMet(
            "its interfaces are not known, since it could not be probed",
            host=host.name,
            hint=f"clusterctl check --limit {host.name}",
        )
    address = choose_address(inventory, host, facts)
    nccl, gloo = host.nics.nccl or address.nic, host.nics.gloo or address.nic
    for purpose, nic in (("nccl", nccl), ("gloo", gloo)):
        _require_usable(host, facts, purpose, nic)
    _require_rdma(host, facts)
    return Node(
        host=host.name,
        role=host.role,
        node_ip=address.ip,
        control_nic=address.nic,
        nccl_nics=(nccl,),
        gloo_nic=gloo,
        rdma=host.nics.rdma or tuple(device.name for device in facts.rdma if device.active),
        gpus=len(host.gpus) or _gpus_found(inventory, facts),
        explain=(
            f"node IP {address.ip} on {address.nic}: {address.reason}",
            f"NCCL on {nccl}: {_nic_reason(host.nics.nccl)}",
            f"Gloo on {gloo}: {_nic_reason(host.nics.gloo)}",
        ),
    )


def _nic_reason(named: str | None) -> str:
    return "named in the inventory" if named else "the interface that holds the node IP"


def _gpus_found(inventory: Inventory, facts: HostFacts) -> int:
    """What an inventory that promises nothing for a host gets: every GPU it has."""
    return len(facts.gpus.gpus) if inventory.accelerator == "nvidia" else 0


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
    missing = [name for name in host.nics.rdma if name not in found]
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


def _with_common_rdma(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """RDMA on every node or on none: NCCL cannot join InfiniBand to sockets."""
    found = tuple(nodes)
    lacking = [node.host for node in found if not node.rdma]
    if not lacking:
        return tuple(
            replace(node, explain=(*node.explain, f"RDMA over {', '.join(node.rdma)}"))
            for node in found
        )
    line = "RDMA off: no active device"
    if len(lacking) < len(found):
        line = f"RDMA off: no active device on {', '.join(lacking)}"
    return tuple(replace(node, rdma=(), explain=(*node.explain, line)) for node in found)
