"""Which address and which interfaces every host uses: what the inventory names, else what one rule
chooses. Pure: inventory and facts in, a topology out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import ClusterctlError, RequirementsNotMet, raise_all
from clusterctl.facts.candidates import Candidate, as_candidate, candidates, speed_of
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.addresses import (
    Chosen,
    fabric_address,
    lone_address,
    named_address,
    ssh_addresses,
)
from clusterctl.network.fabric_choice import Fabric, choose_fabric
from clusterctl.network.rdma_choice import RdmaChoice, choose_rdma
from clusterctl.ray_cluster.topology import Node, Topology

T = TypeVar("T")


@dataclass(frozen=True)
class Carrier:
    """The interface for one purpose, and why it is that one."""

    nic: str
    reason: str


@dataclass(frozen=True)
class NetworkChoice:
    """By host."""

    control: Mapping[str, Chosen]
    nccl: Mapping[str, Carrier]
    gloo: Mapping[str, Carrier]


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


def choose_network(
    inventory: Inventory, facts: Mapping[str, HostFacts], named: Mapping[str, Chosen | None]
) -> NetworkChoice:
    """Interfaces of all hosts; `named` are the node IPs that the inventory says.

    Where it says one, that interface serves NCCL and Gloo too, unless their own are named. Where
    it says nothing, tensors take the fabric (`choose_fabric`), and Ray the subnet that SSH
    connects to, else the fabric. Raises RequirementsNotMet.
    """
    said = {name: address for name, address in named.items() if address is not None}
    open_hosts = {host.name: host for host in inventory.hosts if host.name not in said}
    control = {**said, **_control(open_hosts, facts)}
    fabric = _fabric(inventory, facts, said, control)
    for name in open_hosts:
        if name not in control and fabric:
            control[name] = fabric_address(fabric.places[name])
    nccl = {h.name: _nccl(h, said, control, fabric) for h in inventory.hosts}
    gloo = {h.name: _gloo(h, said, nccl[h.name]) for h in inventory.hosts}
    return NetworkChoice(control, nccl, gloo)


def _control(hosts: Mapping[str, Host], facts: Mapping[str, HostFacts]) -> dict[str, Chosen]:
    if len(facts) > 1:
        return ssh_addresses(hosts, facts)
    return {name: lone_address(host, facts[name]) for name, host in hosts.items()}


def _fabric(
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    said: Mapping[str, Chosen],
    control: Mapping[str, Chosen],
) -> Fabric | None:
    """None where nothing is left to choose, or for one host alone that has no choice."""
    pinned = {
        host.name: pin
        for host in inventory.hosts
        if (pin := _pin(host, facts[host.name], said.get(host.name)))
    }
    if len(pinned) == len(facts) and len(control) == len(facts):
        return None
    if len(facts) == 1 and not any(candidates(of_host) for of_host in facts.values()):
        return None
    first = {name: chosen.nic for name, chosen in control.items()}
    return choose_fabric(facts, pinned, first)


def _pin(host: Host, facts: HostFacts, said: Chosen | None) -> Candidate | None:
    """The interface of NCCL as far as the inventory says it."""
    name = host.nics.nccl or (said.nic if said else None)
    nic = facts.nic(name) if name else None
    return as_candidate(facts, nic) if nic else None


def _nccl(
    host: Host,
    said: Mapping[str, Chosen],
    control: Mapping[str, Chosen],
    fabric: Fabric | None,
) -> Carrier:
    if host.nics.nccl:
        return Carrier(host.nics.nccl, "named in the inventory")
    if host.name in said or fabric is None:
        return Carrier(control[host.name].nic, "the interface that holds the node IP")
    return Carrier(fabric.places[host.name].nic.nic, fabric.reason)


def _gloo(host: Host, said: Mapping[str, Chosen], nccl: Carrier) -> Carrier:
    if host.nics.gloo:
        return Carrier(host.nics.gloo, "named in the inventory")
    if host.name in said:
        return Carrier(said[host.name].nic, "the interface that holds the node IP")
    return Carrier(nccl.nic, "the interface of NCCL")
