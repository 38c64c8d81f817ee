"""Find the first cause of what is wrong with one direction of a pair of hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.network.pairs.model import Lane, Way, network
from clusterctl.network.pairs.sizes import SMALL

RED = 0.5  # of the link's speed; one TCP connection fills 94 % of a working Ethernet link

# Mbit/s that one TCP connection of one process always reaches: faster links are judged by this
CERTAIN = 20_000

CARRIES = {"control": "Ray", "nccl": "NCCL", "gloo": "Gloo"}


@dataclass(frozen=True)
class PairFault:
    """A fault of one direction. Slots in `summary` and `hint`: {nic} and {network} of the host that
    is named, {others} for all its peers with the same fault, and of the first of them {other} (its
    name), {other_nic}, {other_network} and {address}."""

    kind: str
    culprit: str  # the host at fault; "" if that depends on the other pairs
    way: Way
    summary: str
    hint: str


def fault_of(way: Way, ports: Mapping[int, str]) -> PairFault | None:
    """Return the first cause, or None. `ports`: Ray's, by number; others are ephemeral ones."""
    sender, receiver = way.sender, way.receiver
    known = [speed for speed in (sender.speed, receiver.speed) if speed]
    if way.route is not None and way.route != sender.nic:
        return _route(way)
    if taken := _taken_address(way):
        return taken
    if way.silent:
        if apart(way):
            return _different_networks(way)
        return PairFault(
            "silence", "", way,
            f"{{nic}}, which carries {carried(way.lane)}, and {{others}} do not reach each other",
            "check the cable, switch port and VLAN, then the firewall: ip -br link show {nic}; "
            "ping -I {nic} {address}",
        )  # fmt: skip
    if "another program answers" in way.tcp.values():
        return PairFault(
            "stranger", receiver.host, way,
            f"another machine or a proxy answers at its address {receiver.ip} to {{others}}",
            f"find who has the address too: sudo arping -D -I {receiver.nic} {receiver.ip}",
        )  # fmt: skip
    if fault := _firewall(way, ports) or _lost_packets(way):
        return fault
    # Without echo replies, judge by the transfer: connecting takes small packets only.
    answered = way.echo and way.round_trip is not None
    if way.rated and way.rate is None and not answered:
        return PairFault(
            "black hole", "", way,
            "{nic} and {others} connect, and no data arrives: an MTU black hole, or a firewall "
            "that inspects connections",
            f"ping -M do -s {sender.mtu - 28} -I {{nic}} {{address}}",
        )  # fmt: skip
    if way.rate is not None and known and way.rate < RED * min(*known, CERTAIN):
        return PairFault(
            "slow", "", way,
            f"{way.rate:.0f} Mbit/s between {{nic}} and {{others}}, over a link of {min(known)} "
            "Mbit/s",
            "check the negotiated speed and error counters: ethtool {nic}; ip -s link show {nic}",
        )  # fmt: skip
    return None


def carried(lane: Lane) -> str:
    """Traffic that the lane carries: `NCCL and Gloo`."""
    return " and ".join(CARRIES.get(purpose, purpose) for purpose in lane.purposes)


def apart(way: Way) -> bool:
    """Whether the ends are in different networks: a mistake unless a router connects them."""
    return network(way.sender) != network(way.receiver)


def _route(way: Way) -> PairFault:
    sender, receiver = way.sender, way.receiver
    if apart(way):
        return _different_networks(way)
    route = f"sudo ip route replace {network(receiver)} dev {sender.nic} src {sender.ip}"
    if not way.route:
        summary = f"has no route from {sender}, which carries {carried(way.lane)}, to {{others}}"
        return PairFault("no route", sender.host, way, summary, route)
    summary = (
        f"packets to {{others}} leave by {way.route}, not by {sender.nic}, which carries "
        f"{carried(way.lane)}"
    )
    return PairFault("other route", sender.host, way, summary, route)


def _different_networks(way: Way) -> PairFault:
    purpose = way.lane.purposes[0]
    return PairFault(
        "apart", "", way,
        f"its {carried(way.lane)} interface {{nic}} is in {{network}}, and {{other_nic}} of "
        "{other} in {other_network}: they do not reach each other directly",
        f"name interfaces of one network under nics.{purpose} of both hosts in the inventory; "
        "which there are: ip -br addr",
    )  # fmt: skip


def _taken_address(way: Way) -> PairFault | None:
    """Return the fault if another MAC answers for the receiver's address, beside or without its
    own."""
    strange = [mac for mac in way.neighbours if mac not in way.receiver.macs]
    beside = len(strange) < len(way.neighbours)
    if not strange or not (beside or way.broken):
        return None
    receiver = way.receiver
    return PairFault(
        "taken address", receiver.host, way,
        f"another machine has its address {receiver.ip}: {{others}} finds {strange[0]} there, and "
        f"{receiver.nic} has {receiver.mac}",
        f"find the port of {strange[0]} in the switch's table of MAC addresses, and give that "
        f"machine another address; who answers: sudo arping -D -I {receiver.nic} {receiver.ip}",
    )  # fmt: skip


def _firewall(way: Way, ports: Mapping[int, str]) -> PairFault | None:
    shut = sorted(port for port, word in way.tcp.items() if word != "ok")
    if not shut:
        return None
    # `6380 (ray_ports.node_manager), ephemeral ports`
    named = [f"{port} ({ports[port]})" for port in shut if port in ports]
    named += ["ephemeral ports"] if len(named) < len(shut) else []
    drops = all(way.tcp[port] == "no answer" for port in shut)
    return PairFault(
        "firewall", way.receiver.host, way,
        f"a firewall {'drops' if drops else 'refuses'} connections from {{others}} to "
        f"{', '.join(named) if 'ok' in way.tcp.values() else 'all ports tried'} on "
        f"{way.receiver.nic}",
        f"sudo iptables -I INPUT -s {network(way.sender)} -j ACCEPT; current rules: "
        "sudo nft list ruleset; sudo iptables -S INPUT",
    )  # fmt: skip


def _lost_packets(way: Way) -> PairFault | None:
    echo = way.echo or {}
    lost = sorted(size for size, seen in echo.items() if seen is None)
    if echo.get(SMALL) is None or not lost:
        return None
    sender, receiver = way.sender, way.receiver
    if lost[0] > receiver.mtu:
        return PairFault(
            "jumbo on one side", sender.host, way,
            f"its MTU on {sender.nic} is {sender.mtu}, and {receiver.mtu} on {receiver.nic} of "
            "{other}: larger packets are lost",
            f"sudo ip link set {sender.nic} mtu {receiver.mtu}; or give all hosts, and the switch, "
            f"{sender.mtu}",
        )  # fmt: skip
    passed = way.largest or SMALL
    return PairFault(
        "black hole", "", way,
        f"packets of {lost[0]} bytes between {{nic}} and {{others}} are lost silently, "
        f"{passed} bytes pass: an MTU black hole",
        f"sudo ip link set {{nic}} mtu {passed}, on all hosts; or raise the MTU of the switch or "
        f"tunnel between to {lost[0]}",
    )  # fmt: skip
