"""The topology: address, interfaces and GPUs of every host in the cluster. Plain data.

The address given to Ray determines all others: gRPC, the queues of vLLM's executor and the store of
torch.distributed all bind to the node's IP. A node whose Ray address differs from VLLM_HOST_IP, or
two nodes with the same one, are classic causes of waiting forever for GPUs (vllm issues 7815 and
13521).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Role

REPLICA_PORTS = range(8100, 8200)
"""Ports of the API servers of replicas, on each of their hosts. Only gateways connect to them."""


@dataclass(frozen=True)
class Node:
    """One host as a node of the cluster."""

    host: str
    role: Role
    node_ip: str
    control_nic: str  # the NIC that has `node_ip`
    nccl_nics: tuple[str, ...]
    gloo_nic: str
    # Ports of RDMA devices, such as mlx5_0:1; empty on all nodes unless all have some.
    rdma: tuple[str, ...]
    gpus: int
    speed: int | None = None  # Mbit/s of `control_nic`, if known
    explain: tuple[str, ...] = ()  # reasons for the choices, one line each


@dataclass(frozen=True)
class Topology:
    """All nodes, in the order of the inventory."""

    nodes: tuple[Node, ...]

    @property
    def head(self) -> Node:
        return next(node for node in self.nodes if node.role == "head")

    def node(self, host: str) -> Node:
        """Return the node of `host`. Raises KeyError."""
        for node in self.nodes:
            if node.host == host:
                return node
        raise KeyError(host)


def shared_addresses(nodes: Iterable[Node]) -> Iterator[RequirementsNotMet]:
    """Yield an error for each node that has the node IP of an earlier one."""
    owners: dict[str, str] = {}
    for node in nodes:
        owner = owners.setdefault(node.node_ip, node.host)
        if owner != node.host:
            yield RequirementsNotMet(
                f"its node IP {node.node_ip} is also that of {owner}",
                host=node.host,
                hint=f"give hosts.{node.host}.node_ip its own address",
            )


def host_port(ip: str, port: int) -> str:
    """Format `ip:port`, with brackets around an IPv6 address."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def client_address(host: Host, facts: HostFacts, node_ip: str) -> str:
    """Return a host's address for clients: the one that SSH uses, if an interface has it."""
    return host.address if facts.nic_with(host.address) else node_ip


def reached_at(listens_on: str, head: str) -> str:
    """Return a server's address for clients: the head's if it listens on all addresses."""
    return head if listens_on in ("0.0.0.0", "::") else listens_on  # noqa: S104 - nothing binds


def base_url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the URL of an address and port."""
    return f"http{'s' * tls}://{host_port(host, port)}"
