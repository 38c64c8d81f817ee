"""Build the orders for each host, and interpret its answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.facts.claims import finite
from clusterctl.network.pairs.host_program import SMALL
from clusterctl.network.pairs.model import End, HostLink, Lane, network

# Seconds: ramp-up to ignore, time to measure, and from one round to the next. TCP reaches 10 Gbit/s
# after some 10 ms in a local network; 0.18 s are 22 MB on 1 Gbit/s.
WARM_UP, WINDOW, SLOT = 0.07, 0.18, 0.3

LATE = 1.5  # Seconds to wait for results after the last round

ROUNDS_WITHIN = 6.0  # Seconds for throughput; pairs that do not fit are left out, with a note

ETHERNET = 1500

# Number of peers that each host tries on all ports: the next ones in the ring of hosts. Others are
# tried on an ephemeral port and the head's GCS port only. Firewall rules are set for a host, seldom
# for one of its peers.
NEIGHBOURS = 8


@dataclass(frozen=True)
class Listening:
    """A host whose program is listening."""

    ephemeral: Mapping[int, int]  # Lane to the port that sends the greeting
    counting: Mapping[int, int]  # Lane to the port that counts received bytes
    busy: frozenset[int]  # Ray's ports that another program on the host listens on
    ports: Mapping[int, str]  # Ray's, with their names
    ahead: float = 0.0  # Its monotonic clock minus the operator's, in seconds


@dataclass(frozen=True)
class Table:
    """All lanes and hosts. Hosts and lanes are numbered by their position here."""

    lanes: Sequence[Lane]
    hosts: Sequence[str]
    members: Mapping[str, Listening]
    greeting: str


def held(lanes: Sequence[Lane], host: str) -> list[int]:
    """Numbers of the lanes that `host` is on; hosts number their listeners in this order."""
    return [number for number, lane in enumerate(lanes) if host in lane.ends]


def reach_order(table: Table, host: str) -> Any:
    ends = list(_others(table, host))
    knocks = [(end, peer, port) for number, end, peer in ends
              for port in _ports(table, number, host, peer.host)]  # fmt: skip
    return {
        "routes": [(peer.ip, source) for _, end, peer in ends for source in (end.ip, "")],
        "neighbours": [(end.nic, end.ip, peer.ip) for _, end, peer in ends
                       if ":" not in peer.ip and network(end) == network(peer)],
        "tcp": [(end.ip, peer.ip, port) for end, peer, port in knocks],
        "greeting": table.greeting,
        "greeted": [(peer.ip, port) for _, peer, port in knocks
                    if port not in table.members[peer.host].busy],
        "echo": [(end.ip, peer.ip, size) for _, end, peer in ends
                 for size in packet_sizes(end, peer)],
    }  # fmt: skip


def packet_sizes(sender: End, receiver: End) -> tuple[int, ...]:
    """Sizes of IP packets: SMALL, the smaller MTU of both ends, the sender's, and ETHERNET."""
    both = min(sender.mtu, receiver.mtu)
    if not both:
        return (SMALL,)
    found = {SMALL, both, sender.mtu, *((ETHERNET,) if both > ETHERNET else ())}
    # 65536 is the loopback's MTU, and more than a packet can have.
    return tuple(sorted(min(size, 65535) for size in found))


def _others(table: Table, host: str) -> Iterator[tuple[int, End, End]]:
    """Yield (lane, own end, peer's end) for every peer of `host`. Each host starts with a different
    peer, so that they do not all connect to the same one first."""
    at = table.hosts.index(host)
    peers = [*table.hosts[at + 1 :], *table.hosts[:at]]
    for number in held(table.lanes, host):
        ends = table.lanes[number].ends
        yield from ((number, ends[host], ends[peer]) for peer in peers if peer in ends)


def _ports(table: Table, lane: int, host: str, peer: str) -> list[int]:
    """Ports to connect to: an ephemeral port on every lane, and Ray's on the first lane."""
    found = table.members.get(peer)
    if found is None:
        return []
    wanted = [found.ephemeral[lane]]
    if lane == 0:
        follows = (table.hosts.index(peer) - table.hosts.index(host)) % len(table.hosts)
        close = follows <= NEIGHBOURS
        wanted += [port for port, name in found.ports.items() if close or name.endswith("gcs")]
    return wanted


def read_rates(_host: str, answer: Any) -> Mapping[tuple[int, int], float]:
    """Parse the answer to `rates` to bit/s by (position of the lane among the host's, number of the
    sender). Like `read_links`, raises TypeError, ValueError or LookupError for a malformed
    answer."""
    return _keyed(answer, finite)


def read_links(table: Table, host: str, answer: Any) -> list[HostLink]:
    """Return the links from `host`, from its answer to `reach`. Raises TypeError, ValueError or
    LookupError for a malformed answer."""
    routes = _keyed(answer["routes"], str)  # (to, source) to NIC
    neighbours = _keyed(answer["neighbours"] or (), list)  # (source, to) to MACs
    tcp = _keyed(answer["tcp"], str)  # (source, to, port) to the result
    # (source, to, size of the IP packet) to seconds; None if raw sockets are not allowed
    echo = None if answer["echo"] is None else _keyed(answer["echo"], finite)
    passed: dict[tuple[str, str], list[int]] = {}
    for source, to, size in echo or ():
        passed.setdefault((source, to), []).append(size)

    found = []
    for number, end, peer in _others(table, host):
        tried = [(end.ip, peer.ip, port) for port in _ports(table, number, host, peer.host)]
        asked = packet_sizes(end, peer)
        arrived = passed.get((end.ip, peer.ip), [])
        lost = min((size for size in asked if size not in arrived), default=0)

        link = HostLink(
            table.lanes[number],
            end,
            peer,
            route=routes.get((peer.ip, end.ip)),
            unbound=routes.get((peer.ip, "")),
            neighbours=tuple(neighbours.get((end.ip, peer.ip), ())),
            tcp={key[2]: tcp[key] for key in tried if key in tcp},
            largest=max((size for size in arrived if size < lost), default=None),
        )
        if echo is not None:
            trips = {size: echo.get((end.ip, peer.ip, size)) for size in asked}
            link = replace(link, echo=trips)
        found.append(link)
    return found


def _keyed(rows: Any, kind: Callable[[Any], Any]) -> dict[Any, Any]:
    """Build a mapping from [key, value] rows, since JSON cannot have tuples as keys."""
    return {tuple(key): kind(value) for key, value in rows}


@dataclass(frozen=True)
class Rounds:
    """The throughput rounds: when each link is measured, in seconds from the start."""

    slots: Sequence[tuple[float, HostLink]]
    end: float
    pairs_each: int  # Number of peers that every host sends to on each lane


def rounds(hosts: int, most: int) -> Sequence[int]:
    """Return the shifts of a round-robin tournament: in round s every host sends to the s-th host
    after it and receives from the s-th before it, so that all pairs take `hosts` - 1 rounds. If
    there would be more than `most`, return that many, evenly spread."""
    shifts = range(1, hosts)
    count = min(len(shifts), most)
    return tuple(shifts[number * len(shifts) // count] for number in range(count))


def plan_rounds(table: Table, found: Sequence[HostLink]) -> Rounds:
    """Plan all pairs, or as many as fit into ROUNDS_WITHIN."""
    hosts = [host for host in table.hosts if host in table.members]
    shifts = rounds(len(hosts), max(1, int(ROUNDS_WITHIN / SLOT / len(table.lanes))))
    slots = []
    for link in found:
        sender, receiver = link.sender.host, link.receiver.host
        if receiver not in table.members or "ok" not in link.tcp.values():
            continue
        shift = (hosts.index(receiver) - hosts.index(sender)) % len(hosts)
        if shift in shifts:
            number = table.lanes.index(link.lane) * len(shifts) + shifts.index(shift)
            slots.append((number * SLOT, link))
    return Rounds(slots, len(table.lanes) * len(shifts) * SLOT, len(shifts))


def rates_order(table: Table, planned: Rounds, host: str, start: float) -> Any:
    """Build the order for `host`; `start` is in seconds of that host's monotonic clock."""
    slots = sorted(
        (start + moment, link.sender.ip, link.receiver.ip,
         table.members[link.receiver.host].counting[table.lanes.index(link.lane)])
        for moment, link in planned.slots
        if link.sender.host == host
    )  # fmt: skip
    return {
        "slots": slots,
        "index": table.hosts.index(host),
        # The receiver's window starts with the first bytes.
        "seconds": WARM_UP + WINDOW + 0.03,
        "expected": sum(link.receiver.host == host for _, link in planned.slots),
        "end": start + planned.end + LATE,
    }


def with_rates(
    table: Table,
    planned: Rounds,
    found: Sequence[HostLink],
    answers: Mapping[str, Mapping[tuple[int, int], float]],
) -> list[HostLink]:
    """Return the same links with the rates that receivers counted, from the answers to `rates`."""
    tried = {id(link) for _, link in planned.slots}

    def rated(link: HostLink) -> HostLink:
        if id(link) not in tried:
            return link
        counted = answers.get(link.receiver.host) or {}
        number = held(table.lanes, link.receiver.host).index(table.lanes.index(link.lane))
        bits = counted.get((number, table.hosts.index(link.sender.host)))
        rate = None if bits is None else bits / 1e6
        return replace(link, rated=link.receiver.host in answers, rate=rate)

    return [rated(link) for link in found]
