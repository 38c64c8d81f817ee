"""How a host's node IP is chosen, and what is said when it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.inventory.model import Host, Inventory

_PRIVATE_TO_THE_HOST = (
    "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "lxc", "podman",
    "tailscale", "wg", "zt", "tun",
)  # fmt: skip
"""Name prefixes of interfaces that container engines, hypervisors and VPNs make: they have
addresses, and no other host of the cluster is reached through them at full speed."""


@dataclass(frozen=True)
class Chosen:
    ip: str
    nic: str
    reason: str


def choose_address(inventory: Inventory, host: Host, facts: HostFacts) -> Chosen:
    """The node IP: named, or on the control NIC, or in the subnet, or where SSH connects,
    or the only candidate: what is said of one host wins over what is said of all. Raises
    RequirementsNotMet."""
    if host.node_ip:
        return _held(host, facts, host.node_ip, "node_ip in the inventory")
    if host.nics.control:
        return _on_nic(host, facts, host.nics.control)
    if inventory.network.subnet:
        return _in_subnet(inventory, host, facts)
    if facts.nic_with(host.address):
        return _held(host, facts, host.address, "the address that SSH connects to")
    return _only_candidate(host, facts)


def host_port(ip: str, port: int) -> str:
    """`ip:port`, with the brackets that an IPv6 address needs."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


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
        raise RequirementsNotMet(
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


def _only_candidate(host: Host, facts: HostFacts) -> Chosen:
    candidates = [
        (nic, ip)
        for nic, ip in _addresses(facts)
        if nic.state != "down" and ":" not in ip and not nic.name.startswith(_PRIVATE_TO_THE_HOST)
    ]
    if len(candidates) != 1:
        raise RequirementsNotMet(
            f"its node IP is not clear: {_listed(candidates) or 'no address'}",
            host=host.name,
            hint=f"set network.subnet, or hosts.{host.name}.node_ip",
        )
    nic, ip = candidates[0]
    return Chosen(ip, nic.name, "its only global IPv4 address")


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
