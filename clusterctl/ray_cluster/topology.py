"""The place of every host in the cluster: address, interfaces, GPUs. Plain data.

The address that Ray is given decides over everything else: gRPC, the queues of vLLM's
executor and the store of torch.distributed all bind to the node's IP. A node whose Ray
address differs from VLLM_HOST_IP, or two nodes with the same one, is the classic way to wait
forever for GPUs (vllm issues 7815 and 13521).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Role


@dataclass(frozen=True)
class Node:
    """One host's place in the cluster."""

    host: str
    role: Role
    node_ip: str
    control_nic: str  # holds `node_ip`
    nccl_nics: tuple[str, ...]
    gloo_nic: str
    # Ports of RDMA devices, such as mlx5_0:1; empty on every node unless every node has some.
    rdma: tuple[str, ...]
    gpus: int
    speed: int | None = None  # Mbit/s of `control_nic`, if known
    explain: tuple[str, ...] = ()  # how each of these was chosen, a line each


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


def host_port(ip: str, port: int) -> str:
    """`ip:port`, with the brackets that an IPv6 address needs."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def head_address(head: Host, facts: HostFacts, node_ip: str) -> str:
    """Where clients reach the head: the address that SSH uses, if it is one of its own."""
    return head.address if facts.nic_with(head.address) else node_ip


def reached_at(listens_on: str, head: str) -> str:
    """The address to tell clients. A server that listens on all addresses has none of its own."""
    return head if listens_on in ("0.0.0.0", "::") else listens_on  # noqa: S104 - nothing binds


def base_url(host: str, port: int) -> str:
    """The URL of an address and port; an IPv6 address gets its brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
