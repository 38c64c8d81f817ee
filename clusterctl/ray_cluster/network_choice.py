"""The interfaces of every host by purpose: named in the inventory, else by one rule. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.facts.candidates import Candidate, as_candidate, candidates
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.ray_cluster.addresses import (
    Chosen,
    fabric_address,
    lone_address,
    ssh_addresses,
)
from clusterctl.ray_cluster.fabric_choice import Fabric, choose_fabric


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
