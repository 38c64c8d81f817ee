"""Name unused interfaces that are faster than the chosen one, or that SSH connects to, with the
reason and the inventory line that would select them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
    """Whether the choice succeeds with this network.subnet, and these nics on every host."""

    def __call__(
        self, subnet: IPv4Network | IPv6Network | None, nics: Nics | None = None
    ) -> bool: ...


NAMED = 3  # Interfaces or hosts to name; the others are counted


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
    """Return by host a line such as `passed over: ens5 (100 Gbit/s): no address in 10.1.0.0/24 on
    b`; hosts without one are left out.

    reached  address of each host that SSH connects to, where that is known
    works    whether the choice succeeds with this network.subnet, and these nics on every host
    """
    known = AllNetworks.of(facts)
    lines = {}
    for node in topology.nodes:
        groups: dict[Unused, list[str]] = defaultdict(list)
        for nic in _likelier(node, facts[node.host], reached.get(node.host)):
            groups[_unused(nic, node.host, known, works)].append(nic.name)
        if groups:
            lines[node.host] = "passed over: " + "; ".join(
                _sentence(names, unused) for unused, names in groups.items()
            )
    return lines


@dataclass(frozen=True)
class AllNetworks:
    """The networks of all hosts, collected once."""

    facts: Mapping[str, HostFacts]
    # By host and network, Mbit/s of the fastest interface there: 0 for an unknown speed
    speeds: Mapping[str, Mapping[IPv4Network | IPv6Network, int]]
    owners: Mapping[str, Sequence[str]]  # By address, the hosts that have it

    @classmethod
    def of(cls, facts: Mapping[str, HostFacts]) -> AllNetworks:
        speeds: dict[str, dict[IPv4Network | IPv6Network, int]] = {}
        owners: dict[str, list[str]] = defaultdict(list)
        for name, of_host in facts.items():
            own: dict[IPv4Network | IPv6Network, int] = {}
            speeds[name] = own
            for nic in of_host.nics:
                speed = speed_of(of_host, nic.name) or 0
                for network in _networks(nic):
                    own[network] = max(speed, own.get(network, 0))
                for address in nic.addresses:
                    owners[address.ip].append(name)
        return cls(facts, speeds, owners)

    def is_common(self, network: IPv4Network | IPv6Network) -> bool:
        return all(network in of_host for of_host in self.speeds.values())


def _likelier(node: Node, facts: HostFacts, reached: str | None) -> Iterator[NicFacts]:
    """Yield unused interfaces that a user would expect to be used."""
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


def _unused(nic: NicFacts, host: str, known: AllNetworks, works: Works) -> Unused:
    candidate = as_candidate(known.facts[host], nic)
    reasons = {other.nic: other.reason for other in rejected(known.facts[host])}
    why = reasons.get(nic.name) or _not_taken(candidate, host, known)
    return Unused(candidate.speed, why, _fix(nic, known, works))


def _fix(nic: NicFacts, known: AllNetworks, works: Works) -> str:
    """Return the inventory line that selects the interface: by network, or by name if all hosts
    have it in one network or VPN; "" if neither works."""
    common = {network for network in _networks(nic) if known.is_common(network)}
    for network in common:
        if works(network):
            return f"network: {{subnet: {network}}}"

    name = nic.name
    ends = [(of, end) for of in known.facts.values() if (end := of.nic(name))]
    joined = common or all(maker_of(of, end) == VPN for of, end in ends)
    shared = any(len(known.owners[a.ip]) > 1 for _, end in ends for a in end.addresses)
    if len(ends) < len(known.facts) or not joined or shared:
        return ""
    by_name = Nics(control=name, nccl=name, gloo=name)
    line = f"nics: {{control: {name}, nccl: {name}, gloo: {name}}} for every host"
    return line if works(None, by_name) else ""


def _networks(nic: NicFacts) -> set[IPv4Network | IPv6Network]:
    """Return the networks that may join hosts: all but IPv6's link-local one."""
    found = {ip_interface(f"{a.ip}/{a.prefix}").network for a in nic.addresses}
    return {network for network in found if network.version == 4 or not network.is_link_local}


def _not_taken(candidate: Candidate, host: str, known: AllNetworks) -> str:
    """Return why a usable interface does not carry the tensors."""
    address = candidate.addresses[0]
    if twins := [name for name in known.owners[str(address.ip)] if name != host]:
        return f"{twins[0]} has the address {address.ip} too"

    network = address.network
    if lacking := [name for name, own in known.speeds.items() if network not in own]:
        return f"no address in {network} on {_some(lacking)}"

    slowest = min(known.speeds, key=lambda name: known.speeds[name][network])
    speed = known.speeds[slowest][network]
    if speed < (candidate.speed or 0):
        return f"{slowest}, at the other end, has {speed_text(speed or None)}"
    return "the inventory names another"


def _some(names: Sequence[str]) -> str:
    """Name the first ones, and count the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def _sentence(names: list[str], unused: Unused) -> str:
    text = f"{_some(names)} ({speed_text(unused.speed)}): {unused.why}"
    return f"{text}; to use it: {unused.fix}" if unused.fix else text
