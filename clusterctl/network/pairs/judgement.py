"""Find what is wrong between hosts: the first cause of each faulty direction of a pair, then one
problem for each cause, however many pairs it affects. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.cluster_requirements import clocks_apart, usual_mtu
from clusterctl.network.pairs.host_program import SMALL
from clusterctl.network.pairs.model import End, HostLink, Lane, PairResults, network

RED = 0.5  # of the link's speed; one TCP connection fills 94 % of a working Ethernet link

# Mbit/s that one TCP connection of one process always reaches: faster links are judged by this
CERTAIN = 20_000

CARRIES = {"control": "Ray", "nccl": "NCCL", "gloo": "Gloo"}

CLOCKS_WITHIN = 1.0  # seconds, beside the measurement's own error

# Seconds of a round trip: ten times what a busy switch takes. Tensor parallelism waits for about a
# hundred of them per token.
DISTANT = 0.005

NAMED = 3  # peers named in a message; the others are only counted


def problems(seen: PairResults, ports: Mapping[int, str]) -> list[RequirementsNotMet]:
    """Return one problem for each cause. `ports`: Ray's ports with their names."""
    routers = _answering_for_several(seen)
    usual = _usual_mtus(seen)
    faults: list[PairFault] = []
    for link in seen.links:
        own = tuple(mac for mac in link.neighbours if mac not in routers)
        if fault := fault_of(replace(link, neighbours=own), ports, usual[link.lane.purposes]):
            faults.append(fault)

    groups: dict[tuple[str, ...], list[PairFault]] = defaultdict(list)
    for fault in _independent(faults):
        groups[fault.kind, "".join(fault.link.lane.purposes)].append(fault)
    found = [problem for group in groups.values() for problem in _of_group(group)]

    offsets = {host: clock.offset for host, clock in seen.clocks.items()}
    limits = {host: CLOCKS_WITHIN + clock.error for host, clock in seen.clocks.items()}
    return [*found, *clocks_apart(offsets, limits)]


def _answering_for_several(seen: PairResults) -> set[str]:
    """Return the MACs that answer for several hosts: those of a router that answers for all, as in
    cloud networks."""
    answers: dict[str, set[str]] = defaultdict(set)
    for link in seen.links:
        for mac in set(link.neighbours) - link.receiver.macs:
            answers[mac].add(link.receiver.host)
    return {mac for mac, hosts in answers.items() if len(hosts) > 1}


def _usual_mtus(seen: PairResults) -> dict[tuple[str, ...], int | None]:
    """Return the MTU that most hosts have on each lane."""
    mtus: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
    for link in seen.links:
        mtus[link.lane.purposes] |= {end.host: end.mtu for end in (link.sender, link.receiver)}
    return {lane: usual_mtu(of.values()) for lane, of in mtus.items()}


def _independent(faults: Sequence[PairFault]) -> Iterator[PairFault]:
    """Yield the faults that do not follow from others: silence follows from a wrong route in the
    other direction, and any fault of an address from another machine that uses it."""
    strayed = {(one.link.receiver, one.link.sender) for one in faults if one.kind.endswith("route")}
    taken = {one.link.receiver for one in faults if one.kind == "taken address"}
    for fault in faults:
        ends = (fault.link.sender, fault.link.receiver)
        silenced = fault.kind == "silence" and ends in strayed
        robbed = fault.kind != "taken address" and not taken.isdisjoint(ends)
        if not silenced and not robbed:
            yield fault


@dataclass(frozen=True)
class PairFault:
    """A fault of one direction. Slots in `summary` and `hint`: {nic} and {network} of the named
    host, {others} for all its peers with the same fault, and for the first of them {other} (its
    name), {other_nic}, {other_network} and {address}."""

    kind: str
    culprit: str  # the host at fault; "" if that depends on the other pairs
    link: HostLink
    summary: str
    hint: str


def fault_of(
    link: HostLink, ports: Mapping[int, str], usual: int | None = None
) -> PairFault | None:
    """Return the first fault that applies to this direction, or None. `ports`: Ray's ports by
    number; the system chose all others. `usual`: the MTU of most hosts."""
    sender, receiver = link.sender, link.receiver
    known = [speed for speed in (sender.speed, receiver.speed) if speed]
    if link.route is not None and link.route != sender.nic:
        if apart(link):
            return _different_networks(link)
        route = f"sudo ip route replace {network(receiver)} dev {sender.nic} src {sender.ip}"
        carries = carried(link.lane)
        if link.route:
            summary = (
                f"packets to {{others}} leave through {link.route}, not {sender.nic}, which "
                f"carries {carries}"
            )
            return PairFault("other route", sender.host, link, summary, route)
        summary = f"has no route from {sender}, which carries {carries}, to {{others}}"
        return PairFault("no route", sender.host, link, summary, route)
    # Another MAC answers for the receiver's address, beside its own or without it.
    strange = [mac for mac in link.neighbours if mac not in receiver.macs]
    if strange and (len(strange) < len(link.neighbours) or link.broken):
        return PairFault(
            "taken address", receiver.host, link,
            f"another machine has its address {receiver.ip}: {{others}} finds {strange[0]} at it, "
            f"but {receiver.nic} has {receiver.mac}",
            f"find the port of {strange[0]} in the switch's table of MAC addresses, and give that "
            f"machine a different address; to see who answers: sudo arping -D -I {receiver.nic} "
            f"{receiver.ip}",
        )  # fmt: skip
    if link.silent:
        if apart(link):
            return _different_networks(link)
        return PairFault(
            "silence", "", link,
            f"{{nic}}, which carries {carried(link.lane)}, and {{others}} do not reach each other",
            "check the cable, switch port and VLAN, then the firewall: ip -br link show {nic}; "
            "ping -I {nic} {address}",
        )  # fmt: skip
    if "another program answers" in link.tcp.values():
        return PairFault(
            "stranger", receiver.host, link,
            f"another machine or a proxy answers at its address {receiver.ip} to {{others}}",
            f"find out who else has the address: sudo arping -D -I {receiver.nic} {receiver.ip}",
        )  # fmt: skip
    shut = sorted(port for port, word in link.tcp.items() if word not in ("ok", "no data"))
    if shut:
        # `6380 (ray_ports.node_manager), ephemeral ports`
        named = [f"{port} ({ports[port]})" for port in shut if port in ports]
        named += ["ephemeral ports"] if len(named) < len(shut) else []
        drops = all(link.tcp[port] == "no answer" for port in shut)
        return PairFault(
            "firewall", receiver.host, link,
            f"a firewall {'drops' if drops else 'refuses'} connections from {{others}} to "
            f"{', '.join(named) if 'ok' in link.tcp.values() else 'all ports tried'} on "
            f"{receiver.nic}",
            _opening(receiver.firewall, network(sender)),
        )  # fmt: skip
    if lost := _lost_packets(link, usual):
        return lost
    # Without echo replies, judge by what was transferred: connecting takes small packets only.
    answered = link.echo and link.round_trip is not None
    stuck = link.rated and link.rate is None and not answered
    if stuck or "no data" in link.tcp.values():
        return PairFault(
            "black hole", "", link,
            "{nic} and {others} connect, but no data arrives: an MTU black hole, or a "
            "firewall that inspects connections",
            f"ping -M do -s {sender.mtu - 28} -I {{nic}} {{address}}",
        )  # fmt: skip
    if link.rate is not None and known and link.rate < RED * min(*known, CERTAIN):
        return PairFault(
            "slow", "", link,
            f"{link.rate:.0f} Mbit/s between {{nic}} and {{others}}, over a link of {min(known)} "
            "Mbit/s",
            "check the negotiated speed and error counters: ethtool {nic}; ip -s link show {nic}",
        )  # fmt: skip
    return None


def _opening(firewall: str, network: str) -> str:
    """Return how to let a network in, by what filters incoming connections. An accept in one chain
    of nftables does not end the others, so the rule belongs in the chain that refuses."""
    fixes = {
        "firewalld": f"sudo firewall-cmd --permanent --zone=trusted --add-source={network} && "
        "sudo firewall-cmd --reload",
        "ufw": f"sudo ufw allow from {network}",
        "iptables": f"sudo iptables -I INPUT -s {network} -j ACCEPT; to keep it: sudo "
        "netfilter-persistent save, or sudo service iptables save",
        "nftables": f"in the file that nftables.service loads, put `ip saddr {network} accept` "
        "before the refusing rule of the chain with `hook input`: systemctl cat nftables; sudo "
        "nft list ruleset",
    }
    if firewall in fixes:
        return fixes[firewall]
    named = "; ".join(f"with {name}: {fixes[name]}" for name in ("firewalld", "ufw"))
    return (
        "find out what refuses it: systemctl is-active firewalld ufw; sudo nft list ruleset; sudo "
        f"iptables -S INPUT; {named}; with iptables alone: sudo iptables -I INPUT -s {network} -j "
        "ACCEPT; if nothing does, it is the cloud's security group or a device in between"
    )


def carried(lane: Lane) -> str:
    """Traffic that the lane carries: `NCCL and Gloo`."""
    return " and ".join(CARRIES.get(purpose, purpose) for purpose in lane.purposes)


def apart(link: HostLink) -> bool:
    """Whether the ends are in different networks: a mistake unless a router connects them."""
    return network(link.sender) != network(link.receiver)


def _different_networks(link: HostLink) -> PairFault:
    purpose = link.lane.purposes[0]
    return PairFault(
        "apart", "", link,
        f"its {carried(link.lane)} interface {{nic}} is in {{network}}, and {{other_nic}} of "
        "{other} in {other_network}: they do not reach each other directly",
        f"under nics.{purpose} of both hosts in the inventory, name interfaces of one network; to "
        "list them: ip -br addr",
    )  # fmt: skip


def _lost_packets(link: HostLink, usual: int | None) -> PairFault | None:
    echo = link.echo or {}
    lost = sorted(size for size, seen in echo.items() if seen is None)
    if echo.get(SMALL) is None or not lost:
        return None
    sender, receiver = link.sender, link.receiver
    if lost[0] > receiver.mtu and usual == sender.mtu:
        return PairFault(
            "low MTU", receiver.host, link,
            f"its MTU on {receiver.nic} is {receiver.mtu}, but {sender.mtu} on {{others}}: larger "
            "packets are lost",
            f"sudo ip link set {receiver.nic} mtu {sender.mtu}",
        )  # fmt: skip
    if lost[0] > receiver.mtu:
        return PairFault(
            "jumbo on one side", sender.host, link,
            f"its MTU on {sender.nic} is {sender.mtu}, but {receiver.mtu} on {receiver.nic} of "
            "{other}: larger packets are lost",
            f"sudo ip link set {sender.nic} mtu {receiver.mtu}; or give all hosts, and the switch, "
            f"{sender.mtu}",
        )  # fmt: skip
    passed = link.largest or SMALL
    return PairFault(
        "black hole", "", link,
        f"packets of {lost[0]} bytes between {{nic}} and {{others}} are lost silently, while "
        f"{passed} bytes pass: an MTU black hole",
        f"sudo ip link set {{nic}} mtu {passed}, on all hosts; or raise the MTU of the switch or "
        f"tunnel in between to {lost[0]}",
    )  # fmt: skip


def _of_group(faults: Sequence[PairFault]) -> Iterator[RequirementsNotMet]:
    """Yield one problem per host, starting with the one in the most faulty pairs. A problem covers
    all pairs of its host that no earlier problem covers."""

    def blamed(fault: PairFault) -> tuple[str, ...]:
        ends = (fault.link.sender.host, fault.link.receiver.host)
        return (fault.culprit,) if fault.culprit else ends

    left = list(faults)
    while left:
        counted = Counter(host for fault in left for host in blamed(fault))
        most = max(counted.values())
        # Of equals take the last: a worker is more likely to be at fault than the head.
        host = [host for host, number in counted.items() if number == most][-1]
        own = [fault for fault in left if host in blamed(fault)]
        left = [fault for fault in left if fault not in own]
        # Ring neighbours were tried on more ports than others: the longest summary is complete.
        first = max(own, key=lambda fault: len(fault.summary))
        end, other = _ends(first.link, host)
        peers = dict.fromkeys(_ends(fault.link, host)[1] for fault in own)
        # `gpu1 (10.0.0.1), gpu2 (10.0.0.2) and 5 more`
        names = [f"{peer.host} ({peer.ip})" for peer in peers]
        if len(names) <= NAMED + 1:
            others = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        else:
            others = f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
        slots = {
            "nic": end.nic,
            "network": network(end),
            "others": others,
            "other": other.host,
            "other_nic": other.nic,
            "other_network": network(other),
            "address": other.ip,
        }
        yield RequirementsNotMet(
            first.summary.format(**slots), host=host, hint=first.hint.format(**slots)
        )


def _ends(link: HostLink, host: str) -> tuple[End, End]:
    """Return both ends of the link, first the one on `host`."""
    mine = link.sender.host == host
    return (link.sender, link.receiver) if mine else (link.receiver, link.sender)


def unproven(seen: PairResults) -> Iterator[str]:
    """Yield what could not be tested, and what works but not as intended."""
    for host, why in seen.unverified.items():
        yield f"{host}: not tested: {why}"
    if any(link.echo is None for link in seen.links):
        yield "packet sizes were not tested: raw sockets need root on the hosts"
    for link in seen.links:
        nic, peer = link.sender.nic, link.receiver
        if link.unbound not in (None, "", nic):
            yield (
                f"{link.sender.host} reaches {peer.nic} of {peer.host} through {link.unbound}, not "
                f"{nic}, unless a program binds its address, which NCCL does not: ip route get "
                f"{peer.ip}"
            )


def notes(seen: PairResults) -> Iterator[str]:
    """Yield the measurements, and what could not be measured."""
    yield from unproven(seen)
    if seen.unrated:
        yield seen.unrated
    lanes: dict[tuple[str, ...], list[HostLink]] = defaultdict(list)
    for link in seen.links:
        lanes[link.lane.purposes].append(link)
    for links in lanes.values():
        trips = [link.round_trip for link in links if link.round_trip is not None]
        speeds = [link.rate for link in links if link.rate is not None]
        words = [f"round trip at most {max(trips) * 1000:.2f} ms"] if trips else []
        if speeds:
            words.append(f"{min(speeds):.0f} to {max(speeds):.0f} Mbit/s")
        if words:
            # `between hosts, for Ray: round trip at most 0.10 ms, 9410 to 9420 Mbit/s`
            distant = trips and max(trips) > DISTANT
            yield f"between hosts, for {carried(links[0].lane)}: {', '.join(words)}" + (
                "; on a local network it is less than 1 ms" if distant else ""
            )
