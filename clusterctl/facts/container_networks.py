"""Compare the networks that Docker makes on a host with those that the cluster is in. Pure.

A host delivers packets for its own networks locally: if Docker's bridge has 172.17.0.0/16, no
packet reaches a host at 172.17.0.5. Docker avoids what is in the host's routing table, but not what
lies behind its default route.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_address

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.candidates import VPN, maker_of
from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.inventory.model import Inventory

BRIDGE = IPv4Interface("172.17.0.1/16")  # What Docker takes by itself

# For a bridge where the site uses 172.17.0.0/16: rare networks of each private range
_OTHERS = tuple(map(IPv4Interface, ("172.30.213.1/24", "192.168.213.1/24", "10.213.213.1/24")))


def site_networks(inventory: Inventory, facts: Mapping[str, HostFacts]) -> set[IPv4Network]:
    """Return the networks of all hosts' interfaces and routes except container networks, and the
    inventory's addresses."""
    found = {IPv4Network(host.address) for host in inventory.hosts if _is_ipv4(host.address)}
    for of in facts.values():
        own = [nic for nic in of.nics if _is_of_site(of, nic)]
        found |= {network for nic in own for network in _networks(nic)}
        names = {nic.name for nic in own}
        # Some VPNs write the default route as two halves.
        found |= {it.network for it in of.routes if it.nic in names and it.network.prefixlen > 1}
    return found


def free_bridge(taken: Collection[IPv4Network]) -> IPv4Interface | None:
    """Return an address for Docker's bridge that is in none of the networks; None if Docker's own
    choice is one."""
    if not any(BRIDGE.network.overlaps(network) for network in taken):
        return None
    return next((it for it in _OTHERS if not any(map(it.network.overlaps, taken))), None)


def bridge_choices(inventory: Inventory, facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return the address of Docker's bridge on hosts without Docker, where it is not Docker's own
    choice."""
    bridge = free_bridge(site_networks(inventory, facts))
    if bridge is None:
        return {}
    return {
        host.name: f"Docker's bridge on {bridge.network}: the site uses {BRIDGE.network}, which "
        "Docker would take"
        for host in inventory.hosts
        if host.name in facts and not facts[host.name].engine.installed
    }


def container_network_problems(
    inventory: Inventory, facts: Mapping[str, HostFacts]
) -> Iterator[RequirementsNotMet]:
    """Yield a problem for each container network that hides another host."""
    bridge = free_bridge(site_networks(inventory, facts)) or BRIDGE
    for name, nic in _made_by_docker(facts):
        hidden = _hidden_hosts(inventory, facts, name, nic)
        if not hidden:
            continue
        if nic.name == "docker0":
            hint = (
                f'put "bip": "{bridge}" into /etc/docker/daemon.json; then: sudo systemctl '
                "restart docker"
            )
        else:
            hint = (
                "remove that network, or give it another subnet: docker network ls; docker "
                "network rm NAME"
            )
        network = ", ".join(map(str, _networks(nic)))
        yield RequirementsNotMet(
            f"its Docker has {network} ({nic.name}), which hides {', '.join(hidden)}",
            host=name,
            hint=hint,
        )


def container_network_notes(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """Yield a note for each container network that hides no host, but other addresses of the
    site."""
    taken = {network for network in site_networks(inventory, facts) if network.prefixlen < 32}
    for name, nic in _made_by_docker(facts):
        if _hidden_hosts(inventory, facts, name, nic):
            continue
        for mine in _networks(nic):
            hidden = [
                other
                for other in sorted(taken)
                if other.supernet_of(mine)
                or (mine.supernet_of(other) and _hides(facts[name], nic, other[1]))
            ]
            if hidden:
                yield (
                    f"{name}: {nic.name} of Docker has {mine}, and the site uses "
                    f"{', '.join(map(str, hidden))}: addresses in both cannot be reached from this "
                    "host"
                )


def _made_by_docker(facts: Mapping[str, HostFacts]) -> Iterator[tuple[str, NicFacts]]:
    """Yield Docker's bridges with their hosts."""
    for name, of in facts.items():
        yield from ((name, nic) for nic in of.nics if maker_of(of, nic) == "Docker")


def _hidden_hosts(
    inventory: Inventory, facts: Mapping[str, HostFacts], name: str, bridge: NicFacts
) -> list[str]:
    """Return the hosts that `name` would look for behind the bridge: `b (172.17.0.5)`."""
    return [
        f"{host.name} ({ip})"
        for host in inventory.hosts
        if host.name != name
        for ip in sorted(_addresses(host.address, facts.get(host.name)))
        if _hides(facts[name], bridge, ip)
    ]


def _hides(facts: HostFacts, bridge: NicFacts, ip: IPv4Address) -> bool:
    """Whether packets to `ip` use the bridge: no network or route of the host is narrower."""
    own = [net for nic in facts.nics if _is_of_site(facts, nic) for net in _networks(nic)]
    others = [*own, *(route.network for route in facts.routes if route.nic != bridge.name)]
    best = max((net.prefixlen for net in others if ip in net), default=0)
    return any(ip in net and net.prefixlen > best for net in _networks(bridge))


def _is_of_site(facts: HostFacts, nic: NicFacts) -> bool:
    return nic.kind != "loopback" and maker_of(facts, nic) in (None, VPN)


def _networks(nic: NicFacts) -> list[IPv4Network]:
    pairs = ((address.ip, address.prefix) for address in nic.addresses if ":" not in address.ip)
    return [IPv4Interface(f"{ip}/{prefix}").network for ip, prefix in pairs]


def _addresses(address: str, facts: HostFacts | None) -> set[IPv4Address]:
    """Return the IPv4 addresses that others use for a host: the inventory's, and its NICs'."""
    known = {address} if _is_ipv4(address) else set()
    for nic in facts.nics if facts else ():
        if facts and _is_of_site(facts, nic):
            known |= {each.ip for each in nic.addresses if ":" not in each.ip}
    return {IPv4Address(ip) for ip in known}


def _is_ipv4(text: str) -> bool:
    try:
        return ip_address(text).version == 4
    except ValueError:
        return False
