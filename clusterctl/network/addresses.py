"""How a host's node IP is chosen, and what is said when it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.candidates import candidates
from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.shared_subnets import Place


class OutsideSubnet(RequirementsNotMet):
    """network.subnet does not say which address of the host is meant: none or several are in it."""


@dataclass(frozen=True)
class Chosen:
    ip: str
    nic: str
    reason: str


def named_address(inventory: Inventory, host: Host, facts: HostFacts) -> Chosen | None:
    """The node IP as far as the inventory says it: by itself, by the control NIC, or by the
    subnet; what is said of one host wins over what is said of all. None when nothing is said.
    Raises RequirementsNotMet when the host contradicts."""
    if host.node_ip:
        return _held(host, facts, host.node_ip, "node_ip in the inventory")
    if host.nics.control:
        return _on_nic(host, facts, host.nics.control)
    if inventory.network.subnet:
        return _in_subnet(inventory, host, facts)
    return None


def ssh_addresses(hosts: Mapping[str, Host], facts: Mapping[str, HostFacts]) -> dict[str, Chosen]:
    """The addresses that SSH connects to, where they serve as node IPs: each is on an interface
    that hosts can use, and all are in one subnet. Users reach the API there. Else none."""
    places = {name: _ssh_place(host, facts[name]) for name, host in hosts.items()}
    found = {name: place for name, place in places.items() if place is not None}
    if len(found) < len(hosts) or len({subnet for _, subnet in found.values()}) > 1:
        return {}
    return {name: chosen for name, (chosen, _) in found.items()}


def _ssh_place(host: Host, facts: HostFacts) -> tuple[Chosen, IPv4Network] | None:
    ip = host.address if facts.nic_with(host.address) else facts.ssh_ip
    for nic in candidates(facts):
        for address in nic.addresses:
            if str(address.ip) == ip:
                reason = "the address that SSH connects to"
                return Chosen(ip, nic.nic, reason), address.network
    return None


def fabric_address(place: Place) -> Chosen:
    return Chosen(place.ip, place.nic.nic, "its address in the subnet of NCCL")


def lone_address(host: Host, facts: HostFacts) -> Chosen:
    """The node IP of the only host: nobody else needs to reach it. Raises RequirementsNotMet."""
    offered = candidates(facts)
    held = facts.nic_with(host.address)
    if held and (held.kind != "loopback" or not offered):
        return _held(host, facts, host.address, "the address that SSH connects to")
    if place := _ssh_place(host, facts):
        return place[0]
    best = [nic for nic in offered if nic.default_route or len(offered) == 1]
    if not best:
        raise RequirementsNotMet(
            f"its node IP is not clear: {_listed(_addresses(facts)) or 'no address'}",
            host=host.name,
            hint=f"set network.subnet, or hosts.{host.name}.node_ip",
        )
    reason = "its only usable interface" if len(offered) == 1 else "the default route"
    return Chosen(str(best[0].addresses[0].ip), best[0].nic, reason)


def _held(host: Host, facts: HostFacts, ip: str, reason: str) -> Chosen:
    nic = facts.nic_with(ip)
    if nic is None:
        raise RequirementsNotMet(
            f"node_ip {ip} is on none of its interfaces",
            host=host.name,
            hint=f"it has {_listed(_addresses(facts))}; correct hosts.{host.name}.node_ip",
        )
    return Chosen(ip, nic.name, reason)


def _in_subnet(inventory: Inventory, host: Host, facts: HostFacts) -> Chosen:
    subnet = inventory.network.subnet
    inside = [
        (nic, ip)
        for nic, ip in _addresses(facts)
        if subnet and ip_address(ip).version == subnet.version and ip_address(ip) in subnet
    ]
    if len({ip for _, ip in inside}) != 1:
        found = f"has {_listed(inside)} there" if inside else "has no address there"
        raise OutsideSubnet(
            f"network.subnet is {subnet}, and the host {found}",
            host=host.name,
            hint=f"set hosts.{host.name}.node_ip to one of {_listed(_addresses(facts))}",
        )
    nic, ip = inside[0]
    return Chosen(ip, nic.name, f"its address in {subnet}")


def _on_nic(host: Host, facts: HostFacts, name: str) -> Chosen:
    nic = facts.nic(name)
    addresses = [a.ip for a in nic.addresses if a.scope == "global"] if nic else []
    if not addresses:
        lack = "has no address" if nic else "does not exist"
        raise RequirementsNotMet(
            f"nics.control names {name}, which {lack}",
            host=host.name,
            hint=f"it has {_listed(_addresses(facts))}; correct hosts.{host.name}.nics.control",
        )
    return Chosen(min(addresses, key=_is_ipv6), name, "nics.control in the inventory")


def _addresses(facts: HostFacts) -> list[tuple[NicFacts, str]]:
    return list(_global_addresses(facts))


def _global_addresses(facts: HostFacts) -> Iterator[tuple[NicFacts, str]]:
    for nic in facts.nics:
        if nic.kind != "loopback":
            yield from ((nic, a.ip) for a in nic.addresses if a.scope == "global")


def _is_ipv6(ip: str) -> bool:
    return ":" in ip


def _listed(addresses: list[tuple[NicFacts, str]]) -> str:
    return ", ".join(f"{ip} on {nic.name}" for nic, ip in addresses)
