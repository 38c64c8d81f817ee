"""Choose the interface and the RDMA devices that carry the tensors, unless the inventory names
them. Pure; the choice of RDMA devices is untested on real hardware.

Of the subnets in which every host has an address, the one with the fastest slowest link is chosen;
ties are broken by RDMA, then nearness to the GPUs, not being on the default route, the larger MTU,
being where SSH connects to, and being the first of two halves of one port. If there is still a tie,
the user has to choose: a guess would be wrong half the time, and show up as slowness or a hang.

Two hosts may also be joined by a cable with link-local addresses (decision 21). If hosts share no
subnet, the interfaces that SSH connects to are used, whatever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from clusterctl.errors import RequirementsNotMet, raise_all
from clusterctl.facts.candidates import (
    Candidate,
    as_candidate,
    candidates,
    direct_links,
    ipv6_addresses,
    loopback_address,
    one_port,
    rejected,
    speed_text,
)
from clusterctl.facts.model import HostFacts, RdmaDevice, RdmaPort
from clusterctl.facts.network_requirements import has_verbs, not_for_nccl
from clusterctl.inventory.model import Inventory

# Slowest link in Mbit/s (0: unknown), RDMA, near the GPUs, not on the default route, smallest MTU.
# Larger is better.
Rank = tuple[int, bool, bool, bool, int]

# Text for users: which element of the rank decided
_BETTER = (
    "faster than {}",
    "as fast as {}, and has RDMA",
    "as fast as {}, and nearer to the GPUs",
    "as fast as {}, which has the default route",
    "as fast as {}, and has the larger MTU",
)


@dataclass(frozen=True)
class NicAddress:
    """A host's address in a subnet."""

    ip: str
    nic: Candidate


@dataclass(frozen=True)
class SharedSubnet:
    """A subnet and each host's interface in it, or several if they are equally good."""

    subnet: IPv4Network
    places: Mapping[str, tuple[NicAddress, ...]]

    @property
    def rank(self) -> Rank:
        return _rank([place.nic for alike in self.places.values() for place in alike[:1]])

    def __str__(self) -> str:
        """Format `10.0.0.0/24 (100 Gbit/s, MTU 9000, RDMA)`: the lowest values of all hosts."""
        speed, rdma, near, _, mtu = self.rank
        parts = [speed_text(speed or None), f"MTU {mtu}"]
        parts += ["RDMA"] if rdma else []
        parts += ["near the GPUs"] if near else []
        parts += ["link-local: a direct cable"] if self.subnet.is_link_local else []
        return f"{self.subnet} ({', '.join(parts)})"


@dataclass(frozen=True)
class Option:
    """One of several equally good choices, offered to the user."""

    text: str
    subnet: str
    nics: Mapping[str, str]  # by host, the value for `nics.nccl`


class Undecided(RequirementsNotMet):
    """Several choices are equally good; `options` lists them for the user."""

    def __init__(
        self,
        summary: str,
        options: Sequence[Option],
        keys: Sequence[str] = (),
        host: str | None = None,
    ) -> None:
        """`keys`: what to write into the inventory for each option, under the host's key if any."""
        place = f", under hosts.{host}" if host else ""
        super().__init__(
            summary,
            host=host,
            hint=f"set one in the inventory{place}: {' or '.join(keys)}",
            detail="\n".join(option.text for option in options),
        )
        self.options = tuple(options)


class NoNetwork(RequirementsNotMet):
    """The inventory's settings leave no network that joins all hosts. `subnets`: values for
    network.subnet with which the choice succeeds."""

    subnets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """Each host's interface, and the reason for the choice, which is the same for all hosts."""

    places: Mapping[str, NicAddress]
    reason: str


def choose_fabric(
    facts: Mapping[str, HostFacts],
    named: Mapping[str, Candidate] | None = None,
    reached: Mapping[str, str] | None = None,
    *,
    by_rdma: bool = False,
) -> Fabric:
    """Choose the fabric of the hosts in `facts`.

    named    interface of each host for which the inventory names one: the others must reach it
    reached  address of each host that SSH connects to, where that is known
    by_rdma  RDMA carries the tensors, over all devices: sockets only begin the conversation
    Raises RequirementsNotMet if no network joins the hosts, or several are equally good.
    """
    named, reached = named or {}, reached or {}
    offered = distinct(
        {
            name: (named[name],) if name in named else candidates(of_host)
            for name, of_host in facts.items()
        }
    )
    ranked = shared_subnets(offered)
    cable = None if named else direct_cable(facts, reached)
    if cable and (not ranked or cable.rank[0] > ranked[0].rank[0]):
        ranked = (cable, *ranked)
    if not ranked:
        return _without_subnet(facts, offered, reached)

    ask = len(facts) > 1 and not (by_rdma and ranked[0].rank[1])
    best, reason = _best(ranked, reached, ask=ask)
    chosen = {name: _preferred(places, reached.get(name)) for name, places in best.places.items()}
    if ask:
        raise_all(
            _several_interfaces(name, best.subnet, best.places[name])
            for name, place in chosen.items()
            if place is None
        )
    places = {name: place or best.places[name][0] for name, place in chosen.items()}
    return Fabric(places, reason)


def distinct(offered: Mapping[str, Sequence[Candidate]]) -> dict[str, tuple[Candidate, ...]]:
    """Leave out addresses that several hosts have, as on the network of a BMC or a USB port, or
    behind a NAT in front of virtual machines: they lead each host to itself."""
    owners = Counter(
        ip
        for of_host in offered.values()
        for ip in {a.ip for nic in of_host for a in nic.addresses}
    )
    found = {}
    for name, of_host in offered.items():
        own = (
            replace(nic, addresses=tuple(a for a in nic.addresses if owners[a.ip] == 1))
            for nic in of_host
        )
        found[name] = tuple(nic for nic in own if nic.addresses)
    return found


def direct_cable(facts: Mapping[str, HostFacts], reached: Mapping[str, str]) -> SharedSubnet | None:
    """Return the link-local subnet of a cable between two hosts, or of the addresses that SSH
    connects to; None if it is unclear which interfaces it joins. Several cables between more than
    two hosts share the subnet 169.254.0.0/16 but not a wire."""
    for shared in shared_subnets({name: direct_links(of) for name, of in facts.items()}):
        ends = {
            name: _preferred(places, reached.get(name)) for name, places in shared.places.items()
        }
        certain = all(end is not None for end in ends.values())
        proven = all(end is not None and end.ip == reached.get(name) for name, end in ends.items())
        if certain and (proven or len(facts) == 2):
            return shared
    return None


def _best(
    ranked: Sequence[SharedSubnet], reached: Mapping[str, str], *, ask: bool
) -> tuple[SharedSubnet, str]:
    """Return the best subnet and why it was chosen. Raises Undecided for a tie, if `ask`."""
    best, *others = ranked
    if not others:
        return best, f"the only subnet that all hosts share, {best}"

    tied = [each for each in ranked if each.rank == best.rank]
    if len(tied) == 1:
        pairs = zip(best.rank, others[0].rank, _BETTER, strict=True)
        decided = next(words for mine, theirs, words in pairs if mine != theirs)
        return best, f"{best}, {decided.format(others[0])}"

    by_ssh = [each for each in tied if _holds(each, reached)]
    if by_ssh:
        other = next(each for each in tied if each is not by_ssh[0])
        return by_ssh[0], f"{by_ssh[0]}, as good as {other}, and SSH connects to it"
    if len(tied) == 2 and _halves(*tied):
        return best, f"{best}; {others[0]} is the other half of the same port"
    if not ask:
        more = f" and {len(tied) - 2} more" if len(tied) > 2 else ""
        return best, f"{best}, as good as {others[0]}{more}"
    raise _tie(tied)


def _holds(shared: SharedSubnet, reached: Mapping[str, str]) -> bool:
    """Whether the subnet contains every host's address that SSH connects to."""
    return all(
        any(place.ip == reached.get(name) for place in places)
        for name, places in shared.places.items()
    )


def _halves(first: SharedSubnet, second: SharedSubnet) -> bool:
    """Whether the subnets lie on two halves of one port of every host."""
    return all(
        one_port(places[0].nic.nic, second.places[name][0].nic.nic)
        for name, places in first.places.items()
    )


def _preferred(places: Sequence[NicAddress], reached: str | None) -> NicAddress | None:
    """Return the only place, the one that SSH connects to, or the first half of one port."""
    if by_ssh := [place for place in places if place.ip == reached]:
        return by_ssh[0]
    if len(places) == 2 and one_port(places[0].nic.nic, places[1].nic.nic):
        return places[0]
    return places[0] if len(places) == 1 else None


def _tie(tied: Sequence[SharedSubnet]) -> Undecided:
    options = []
    for shared in tied:
        nics = {name: alike[0].nic.nic for name, alike in shared.places.items()}
        names = ", ".join(f"{name} {nic}" for name, nic in nics.items())
        options.append(Option(f"{shared}: {names}", str(shared.subnet), nics))
    return Undecided(
        f"{len(tied)} subnets that all hosts share are equally good for the tensors",
        options,
        [f"network: {{subnet: {option.subnet}}}" for option in options],
    )


def _without_subnet(
    facts: Mapping[str, HostFacts],
    offered: Mapping[str, Sequence[Candidate]],
    reached: Mapping[str, str],
) -> Fabric:
    """Return the interfaces that SSH connects to, if they are all of one kind (joined by a router,
    a VPN or a wireless network); else every host's only usable one. Raises NoNetwork."""
    held = {name: place for name, of in facts.items() if (place := _place(of, reached.get(name)))}
    kinds = {_kind(facts[name], place.nic.nic) for name, place in held.items()}
    ips = {place.ip for place in held.values()}
    if len(ips) == len(facts) and len(kinds) == 1:
        kind = kinds.pop()
        if kind:
            costs = dict.fromkeys(str(place.nic) for place in held.values())
            return Fabric(
                held,
                "SSH connects to it, and no subnet of other interfaces is shared by all hosts: "
                f"{kind} ({' or '.join(costs)})",
            )
        return Fabric(held, "SSH connects to it; a router joins the hosts' subnets")

    lone = {name: one[0] for name, one in offered.items() if len(one) == 1}
    if len(lone) < len(facts) or any(len(nic.addresses) != 1 for nic in lone.values()):
        raise _no_shared_subnet(facts, offered)
    places = {name: NicAddress(str(nic.addresses[0].ip), nic) for name, nic in lone.items()}
    return Fabric(places, "the only usable interface of every host; a router joins their subnets")


def _place(facts: HostFacts, ip: str | None) -> NicAddress | None:
    """Return the interface that holds `ip`, usable or not; None for the loopback."""
    nic = facts.nic_with(ip) if ip else None
    if ip is None or nic is None or nic.kind == "loopback" or ":" in ip:
        return None
    return NicAddress(ip, as_candidate(facts, nic))


def _kind(facts: HostFacts, nic: str) -> str:
    """Return why such an interface is usually not used, such as `made by a VPN`; else ""."""
    return next((other.reason for other in rejected(facts) if other.nic == nic), "")


def shared_subnets(hosts: Mapping[str, Sequence[Candidate]]) -> tuple[SharedSubnet, ...]:
    """Return the subnets in which every host has its own address: best first, equal ones by
    address."""
    found: dict[str, dict[IPv4Network, list[NicAddress]]] = {}
    for name, offered in distinct(hosts).items():
        subnets = found.setdefault(name, {})
        for candidate in offered:
            for address in candidate.addresses:
                # A /32 network has no room for another host. If an interface has several addresses
                # in one subnet, use the first, with which it was set up.
                known = subnets.get(address.network, ())
                if address.network.prefixlen < 32 and all(p.nic != candidate for p in known):
                    place = NicAddress(str(address.ip), candidate)
                    subnets.setdefault(address.network, []).append(place)
    common = set.intersection(*(set(subnets) for subnets in found.values())) if found else set()
    shared = []
    for subnet in sorted(common):
        places = {}
        for name, subnets in found.items():
            best = max(_rank([place.nic]) for place in subnets[subnet])
            places[name] = tuple(it for it in subnets[subnet] if _rank([it.nic]) == best)
        shared.append(SharedSubnet(subnet, places))
    return tuple(sorted(shared, key=lambda each: each.rank, reverse=True))


def _rank(nics: Sequence[Candidate]) -> Rank:
    return (
        min(nic.speed or 0 for nic in nics),
        all(nic.rdma for nic in nics),
        all(nic.near_gpus for nic in nics),
        not any(nic.default_route for nic in nics),
        min(nic.mtu for nic in nics),
    )


def _several_interfaces(host: str, subnet: IPv4Network, places: Sequence[NicAddress]) -> Undecided:
    names = [place.nic.nic for place in places]
    return Undecided(
        f"has {' and '.join(names)} in {subnet}, equally good",
        [
            Option(f"{name} {place.ip}: {place.nic}", str(subnet), {host: name})
            for name, place in zip(names, places, strict=True)
        ],
        [f"nics: {{nccl: {name}, gloo: {name}}}" for name in names],
        host,
    )


def _no_shared_subnet(
    facts: Mapping[str, HostFacts], offered: Mapping[str, Sequence[Candidate]]
) -> NoNetwork:
    """Return an error that lists every interface of every host and why it is not used."""
    bare = [name for name in facts if not candidates(facts[name])]
    only_ipv6 = [name for name in bare if any(map(ipv6_addresses, facts[name].nics))]
    cause = "no IPv4 subnet is shared by all hosts"
    if bare:
        cause = f"no usable interface with an IPv4 address on {', '.join(bare)}"
    if only_ipv6:
        cause += f" (IPv6 only: {', '.join(only_ipv6)})"
    if twins := _twins(facts):
        cause += f": {twins}"
    hint = None
    if looped := next((ip for name in bare if (ip := loopback_address(facts[name]))), None):
        cause += f"; {looped} is on lo, where NCCL uses 127.0.0.1 (nccl #1053)"
        hint = (
            "on every host, move its address to an interface that NCCL can use: sudo ip link add "
            f"dummy0 up type dummy; sudo ip addr add {looped}/32 dev dummy0; sudo ip addr del "
            f"{looped}/32 dev lo"
        )

    rows = []
    for name, of_host in facts.items():
        names = {nic.nic for nic in offered[name]}
        rows += [(name, n.nic, " ".join(map(str, n.addresses)), str(n)) for n in offered[name]]
        unused = {nic.nic: "another host has the same address" for nic in candidates(of_host)}
        unused |= {other.nic: other.reason for other in rejected(of_host)}
        rows += [
            (name, nic, "", f"not used: {reason}")
            for nic, reason in unused.items()
            if nic not in names
        ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return NoNetwork(
        cause,
        hint=hint,
        detail="\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows),
    )


def _twins(facts: Mapping[str, HostFacts]) -> str:
    """Name an address that several hosts have on usable interfaces; "" if there is none."""
    owners: dict[str, list[str]] = {}
    for name, of_host in facts.items():
        for ip in {str(a.ip) for nic in candidates(of_host) for a in nic.addresses}:
            owners.setdefault(ip, []).append(name)
    several = {ip: names for ip, names in owners.items() if len(names) > 1}
    return next((f"{' and '.join(names)} have {ip}" for ip, names in several.items()), "")


@dataclass(frozen=True)
class RdmaChoice:
    """RDMA ports of each host, as NCCL_IB_HCA names them: `mlx5_0:1` is port 1 of mlx5_0. Empty for
    all hosts if RDMA is off: NCCL cannot connect InfiniBand to sockets."""

    ports: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]


def choose_rdma(inventory: Inventory, facts: Mapping[str, HostFacts]) -> RdmaChoice:
    """Choose the devices that the inventory names, else the fastest active ports of the link layer
    that all hosts have. InfiniBand and Ethernet cannot talk to each other."""
    if not inventory.network.rdma:
        return _off(facts, "network.rdma is false in the inventory")
    usable = {name: _usable(inventory, name, of_host) for name, of_host in facts.items()}
    if lacking := [name for name, ports in usable.items() if not ports]:
        return _off(facts, _why_off(inventory, facts, lacking))
    layers = [{layer for _, layer, _ in ports} for ports in usable.values()]
    common = set.intersection(*layers) if layers else set()
    if not common:
        return _off(facts, "some hosts have InfiniBand and others Ethernet")

    def slowest(layer: str) -> float:
        return min(max(rate for _, of, rate in ports if of == layer) for ports in usable.values())

    layer = max(sorted(common), key=slowest)
    chosen: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    for name, ports in usable.items():
        of_layer = {port: rate for port, of, rate in ports if of == layer}
        named = inventory.host(name).nics.rdma is not None
        # Slower ports beside faster ones usually serve storage or management.
        fastest = max(of_layer.values())
        chosen[name] = tuple(p for p, rate in of_layer.items() if named or rate == fastest)
        left = [port for port, _, _ in ports if port not in chosen[name]]
        why = "active" + (f", and faster than {', '.join(left)}" if left else "")
        reasons[name] = (
            f"RDMA over {', '.join(chosen[name])}: {'named in the inventory' if named else why}"
        )
    if apart := _apart(chosen, facts):
        reasons = {name: f"{reason}; {apart}" for name, reason in reasons.items()}
    return RdmaChoice(chosen, reasons)


def _apart(chosen: Mapping[str, Sequence[str]], facts: Mapping[str, HostFacts]) -> str:
    """Return a warning if the hosts' RoCE interfaces share no network; else ""."""
    networks = []
    for name, ports in chosen.items():
        devices = {port.partition(":")[0] for port in ports}
        names = {nic for it in facts[name].rdma if it.name in devices for nic in it.nics}
        own = (as_candidate(facts[name], nic) for nic in facts[name].nics if nic.name in names)
        networks.append({address.network for nic in own for address in nic.addresses})
    if not all(networks) or set.intersection(*networks):
        return ""
    shown = ", ".join(str(min(of_host)) for of_host in networks[:3])
    return (
        f"its networks differ between hosts ({shown}): they need a router between them; without "
        "one, set network: {rdma: false}"
    )


def usable_ports(device: RdmaDevice) -> tuple[RdmaPort, ...]:
    """Active ports that have an address: NCCL ranks on a port whose GIDs are all zero die after a
    minute."""
    return tuple(port for port in device.ports if port.active and port.gids)


def _usable(inventory: Inventory, name: str, facts: HostFacts) -> list[tuple[str, str, float]]:
    """Return name, link layer and rate of the ports that may be chosen."""
    named = inventory.host(name).nics.rdma
    found: list[tuple[str, str, float]] = []
    for device in facts.rdma if has_verbs(facts) else ():
        wanted = named is None or device.name in named
        if device.active and wanted and not not_for_nccl(device):
            if not device.ports:  # an older probe, which did not look at ports
                found.append((device.name, device.link_layer, 0.0))
            found += (
                (f"{device.name}:{port.number}", port.link_layer, port.rate or 0.0)
                for port in usable_ports(device)
            )
    return found


def _off(facts: Mapping[str, HostFacts], reason: str) -> RdmaChoice:
    return RdmaChoice(dict.fromkeys(facts, ()), dict.fromkeys(facts, f"RDMA off: {reason}"))


def _why_off(inventory: Inventory, facts: Mapping[str, HostFacts], lacking: list[str]) -> str:
    switched = [name for name in lacking if inventory.host(name).nics.rdma == ()]
    if switched:
        return f"nics.rdma is an empty list for {', '.join(switched)}"
    unseen = [name for name in lacking if facts[name].rdma and not has_verbs(facts[name])]
    if unseen:
        return f"no /dev/infiniband/uverbs* on {', '.join(unseen)}"
    foreign = [
        f"{name}: {why}"
        for name in lacking
        for device in facts[name].rdma
        if device.active and (why := not_for_nccl(device))
    ]
    if foreign:
        return "; ".join(foreign)
    zeros = [
        f"{device.name} of {name}"
        for name in lacking
        for device in facts[name].rdma
        if device.active and device.ports and not usable_ports(device)
    ]
    if zeros:
        return f"all GIDs of {', '.join(zeros)} are zero"
    if len(lacking) < len(facts):
        return f"no active device on {', '.join(lacking)}"
    return "no active device"
