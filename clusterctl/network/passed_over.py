"""Name the interfaces that are faster than the chosen one, or that SSH connects to, and are not
used, with the reason and with the line of the inventory that takes them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_interface
from typing import Protocol

from clusterctl.facts.candidates import (
    VPN,
    Candidate,
    as_candidate,
    maker_of,
    one_port,
    rejected,
    speed_of,
    speed_text,
)
from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.inventory.model import Nics
from clusterctl.ray_cluster.topology import Node, Topology


class Works(Protocol):
    """Whether the choice succeeds with this network.subnet, and with these nics of every host."""

    def __call__(
        self, subnet: IPv4Network | IPv6Network | None, nics: Nics | None = None
    ) -> bool: ...


NAMED = 3  # Interfaces to name per reason; the others are counted


@dataclass(frozen=True)
class Unused:
    """Why interfaces of one host, all of one speed, are not used."""

    speed: int | None  # Mbit/s
    why: str
    fix: str  # Line of the inventory that takes them; empty if none does


def passed_over(
    topology: Topology,
    facts: Mapping[str, HostFacts],
    reached: Mapping[str, str],
    works: Works,
) -> dict[str, str]:
    """Return by host a line such as `passed over: ens5 (100 Gbit/s): b has no address in
    10.1.0.0/24`; hosts without one are left out.

    reached  address of each host that SSH connects to, where that is known
    works    whether the choice succeeds with this network.subnet, and these nics of every host
    """
    lines = {}
    for node in topology.nodes:
        groups: dict[Unused, list[str]] = defaultdict(list)
        for nic in _likelier(node, facts[node.host], reached.get(node.host)):
            groups[_unused(nic, node.host, facts, works)].append(nic.name)
        if groups:
            lines[node.host] = "passed over: " + "; ".join(
                _sentence(names, unused) for unused, names in groups.items()
            )
    return lines


def _likelier(node: Node, facts: HostFacts, reached: str | None) -> Iterator[NicFacts]:
    """Yield the interfaces that a user would expect to be used, and that are not."""
    nccl = node.nccl_nics[0]
    used = {nccl, node.control_nic, node.gloo_nic}
    used |= {below for name in used for below in _below(facts, name)}
    carrying = {port.partition(":")[0] for port in node.rdma}
    speed = speed_of(facts, nccl) or 0
    for nic in facts.nics:
        if nic.kind == "loopback" or nic.state not in ("up", "unknown") or nic.name in used:
            continue
        if one_port(nic.name, nccl) or maker_of(facts, nic) not in (None, VPN):
            continue
        # InfiniBand needs no address to carry RDMA.
        devices = {device.name for device in facts.rdma if nic.name in device.nics}
        if devices & carrying and not nic.addresses:
            continue
        holds = any(address.ip == reached for address in nic.addresses)
        if holds or (speed_of(facts, nic.name) or 0) > speed:
            yield nic


def _below(facts: HostFacts, name: str) -> Iterator[str]:
    """Yield all interfaces below one: members of a bond, the parent of a VLAN."""
    nic = facts.nic(name)
    for lower in nic.lower if nic else ():
        yield lower
        yield from _below(facts, lower)


def _unused(nic: NicFacts, host: str, facts: Mapping[str, HostFacts], works: Works) -> Unused:
    candidate = as_candidate(facts[host], nic)
    reasons = {other.nic: other.reason for other in rejected(facts[host])}
    why = reasons.get(nic.name) or _not_taken(candidate, host, facts)
    return Unused(candidate.speed, why, _fix(nic, facts, works))


def _fix(nic: NicFacts, facts: Mapping[str, HostFacts], works: Works) -> str:
    """Return the line of the inventory that takes the interface: its network, or its name where all
    hosts have it in one network or VPN; empty if neither does."""
    networks = _networks(nic)
    for network in networks:
        if works(network):
            return f"network: {{subnet: {network}}}"

    ends = [(of, end) for of in facts.values() if (end := of.nic(nic.name))]
    joined = all(maker_of(of, end) == VPN or networks & _networks(end) for of, end in ends)
    owners = Counter(address.ip for _, end in ends for address in end.addresses)
    if len(ends) < len(facts) or not joined or max(owners.values(), default=2) > 1:
        return ""
    name = nic.name
    works_by_name = works(None, Nics(control=name, nccl=name, gloo=name))
    return f"nics: {{control: {name}, nccl: {name}, gloo: {name}}} for every host" * works_by_name


def _networks(nic: NicFacts) -> set[IPv4Network | IPv6Network]:
    """Return the networks that may join hosts: not IPv6's link-local one."""
    found = {ip_interface(f"{a.ip}/{a.prefix}").network for a in nic.addresses}
    return {network for network in found if network.version == 4 or not network.is_link_local}


def _not_taken(candidate: Candidate, host: str, facts: Mapping[str, HostFacts]) -> str:
    """Return why a usable interface does not carry the tensors."""
    address = candidate.addresses[0]
    others = {name: of for name, of in facts.items() if name != host}
    if twins := [name for name, of in others.items() if of.nic_with(str(address.ip))]:
        return f"{twins[0]} has the address {address.ip} too"

    ends = {name: _fastest_in(address.network, of) for name, of in others.items()}
    if lacking := [name for name, speed in ends.items() if speed is None]:
        return f"no address in {address.network} on {', '.join(lacking)}"

    slowest = min(ends, key=lambda name: ends[name] or 0)
    if (ends[slowest] or 0) < (candidate.speed or 0):
        return f"at the other end, {slowest} has {speed_text(ends[slowest] or None)}"
    return "the inventory names another"


def _fastest_in(network: IPv4Network, facts: HostFacts) -> int | None:
    """Mbit/s of the fastest interface with an address in the network, 0 for an unknown speed; None
    without one."""
    inside = (nic for nic in facts.nics if nic.has_address_in(network))
    return max((speed_of(facts, nic.name) or 0 for nic in inside), default=None)


def _sentence(names: list[str], unused: Unused) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    text = f"{', '.join(names[:NAMED])}{more} ({speed_text(unused.speed)}): {unused.why}"
    return f"{text}; to use it: {unused.fix}" if unused.fix else text
