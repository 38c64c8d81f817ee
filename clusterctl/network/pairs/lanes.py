"""The interfaces and addresses that traffic between hosts takes, purpose by purpose. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterctl.facts.model import HostFacts
from clusterctl.network.pairs.model import End, Lane
from clusterctl.ray_cluster.topology import Node, Topology

# Kinds of NICs whose speed is the link's; a veth says 10 Gbit/s whatever is under it
_HONEST = ("physical", "bond", "vlan")


def lanes(topology: Topology, facts: Mapping[str, HostFacts]) -> tuple[Lane, ...]:
    """One lane for each set of interfaces; purposes that share one are told together.

    Of hosts without facts nothing is said.
    """
    found: dict[tuple[tuple[str, str, str], ...], tuple[list[str], Lane]] = {}
    nodes = [node for node in topology.nodes if node.host in facts]
    for purpose, nics in _purposes(nodes):
        ends = {
            node.host: end
            for node, name in zip(nodes, nics, strict=True)
            if (end := _end(node, facts[node.host], name))
        }
        key = tuple((end.host, end.nic, end.ip) for end in ends.values())
        purposes, _ = found.setdefault(key, ([], Lane((), ends)))
        purposes.append(purpose)
    return tuple(
        Lane(tuple(dict.fromkeys(purposes)), lane.ends) for purposes, lane in found.values()
    )


def _purposes(nodes: list[Node]) -> Iterator[tuple[str, list[str]]]:
    """Each purpose with its NIC on every node. NCCL may have several; those that every node has
    are lanes of their own."""
    yield "control", [node.control_nic for node in nodes]
    for rail in range(min((len(node.nccl_nics) for node in nodes), default=0)):
        yield "nccl", [node.nccl_nics[rail] for node in nodes]
    yield "gloo", [node.gloo_nic for node in nodes]


def _end(node: Node, facts: HostFacts, name: str) -> End | None:
    """The node's address on that NIC, of the family that the node IP has."""
    nic = facts.nic(name)
    if nic is None:
        return None
    six = ":" in node.node_ip
    held = [a for a in nic.addresses if a.scope == "global" and (":" in a.ip) == six]
    held.sort(key=lambda address: address.ip != node.node_ip)
    if not held:
        return None
    speed = nic.speed if nic.kind in _HONEST else None
    macs = frozenset(each.mac for each in facts.nics)
    return End(node.host, nic.name, held[0].ip, held[0].prefix, nic.mtu, speed, nic.mac, macs)


def default_route_notes(topology: Topology, facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """Programs that are told nothing take the interface of the default route (vllm #27823)."""
    strays = [
        f"{node.host} ({default}, not {' or '.join(node.nccl_nics)})"
        for node in topology.nodes
        if node.host in facts
        and (default := facts[node.host].default_nic)
        and default not in node.nccl_nics
    ]
    if strays:
        yield (
            f"the default route does not leave by the interface that carries NCCL on "
            f"{', '.join(strays)}: harmless here, since NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME "
            "say which to take"
        )
