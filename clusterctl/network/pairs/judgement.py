"""From what was seen between hosts to problems and notes: one for each cause, however many
pairs suffer from it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.cluster_requirements import clocks_apart
from clusterctl.network.pairs.faults import Fault, carried, fault_of
from clusterctl.network.pairs.model import End, Seen, Way, network

CLOCKS_WITHIN = 1.0  # Seconds, less what the measurement may be wrong by

# Seconds of a round trip: ten times what a busy switch takes. Tensor parallelism waits for one some
# hundred times a token.
DISTANT = 0.005

NAMED = 3  # Peers that are named; the rest is counted


def problems(seen: Seen, ports: Mapping[int, str]) -> list[RequirementsNotMet]:
    """Every cause once. `ports`: Ray's, by number."""
    faults = [fault for way in _without_proxies(seen.ways) if (fault := fault_of(way, ports))]
    groups: dict[tuple[str, ...], list[Fault]] = defaultdict(list)
    for fault in _without_consequences(faults):
        groups[fault.kind, "".join(fault.way.lane.purposes)].append(fault)
    found = [problem for group in groups.values() for problem in _of_group(group)]
    return [*found, *_clocks(seen)]


def _without_proxies(ways: Sequence[Way]) -> list[Way]:
    """The same, without the MACs that answer for several hosts: a router's that speaks for all, as
    in the networks of clouds."""
    answers: dict[str, set[str]] = defaultdict(set)
    for way in ways:
        for mac in set(way.neighbours) - way.receiver.macs:
            answers[mac].add(way.receiver.host)
    proxies = {mac for mac, hosts in answers.items() if len(hosts) > 1}
    return [
        replace(way, neighbours=tuple(mac for mac in way.neighbours if mac not in proxies))
        for way in ways
    ]


def _without_consequences(faults: Sequence[Fault]) -> Iterator[Fault]:
    """Silence one way follows from a wrong route the other way; whatever else is wrong with an
    address that another machine has, follows from that."""
    strayed = {
        (fault.way.receiver, fault.way.sender) for fault in faults if fault.kind.endswith("route")
    }
    taken = {fault.way.receiver for fault in faults if fault.kind == "taken address"}
    for fault in faults:
        ends = (fault.way.sender, fault.way.receiver)
        if fault.kind == "silence" and ends in strayed:
            continue
        if fault.kind != "taken address" and not taken.isdisjoint(ends):
            continue
        yield fault


def _of_group(faults: Sequence[Fault]) -> Iterator[RequirementsNotMet]:
    """The host that most of the pairs have in common is named first, and its pairs with it."""
    left = list(faults)
    while left:
        host = _culprit(left)
        own = [fault for fault in left if _blames(fault, host)]
        left = [fault for fault in left if fault not in own]
        # Neighbours were tried on more ports than others: the longest tale has it all.
        yield _told(max(own, key=lambda fault: len(fault.summary)), own, host)


def _blames(fault: Fault, host: str) -> bool:
    return host in _blamed(fault)


def _blamed(fault: Fault) -> tuple[str, ...]:
    ends = (fault.way.sender.host, fault.way.receiver.host)
    return (fault.culprit,) if fault.culprit else ends


def _culprit(faults: Sequence[Fault]) -> str:
    """Of hosts with equally many, the last: it is rather a worker that is wrong than the head."""
    counted = Counter(host for fault in faults for host in _blamed(fault))
    most = max(counted.values())
    return [host for host, number in counted.items() if number == most][-1]


def _told(first: Fault, own: Sequence[Fault], host: str) -> RequirementsNotMet:
    peers = dict.fromkeys(_ends(fault.way, host)[1] for fault in own)
    end, other = _ends(first.way, host)
    slots = {
        "nic": end.nic,
        "network": network(end),
        "others": _named([f"{peer.host} ({peer.ip})" for peer in peers]),
        "other": other.host,
        "other_nic": other.nic,
        "other_network": network(other),
        "address": other.ip,
    }
    return RequirementsNotMet(
        first.summary.format(**slots), host=host, hint=first.hint.format(**slots)
    )


def _ends(way: Way, host: str) -> tuple[End, End]:
    """The end of `host`, and the other."""
    mine = way.sender.host == host
    return (way.sender, way.receiver) if mine else (way.receiver, way.sender)


def _named(names: Sequence[str]) -> str:
    """`gpu1 (10.0.0.1), gpu2 (10.0.0.2) and 5 more`."""
    if len(names) <= NAMED + 1:
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _clocks(seen: Seen) -> Iterator[RequirementsNotMet]:
    yield from clocks_apart(
        {host: clock.offset for host, clock in seen.clocks.items()},
        {host: CLOCKS_WITHIN + clock.error for host, clock in seen.clocks.items()},
    )


def notes(seen: Seen) -> Iterator[str]:
    """What was measured, and what could not be."""
    for host, why in seen.unproven.items():
        yield f"{host}: not proven: {why}"
    if any(way.echo is None for way in seen.ways):
        yield "packet sizes are not proven: raw sockets need root on the hosts"
    if seen.unrated:
        yield seen.unrated
    yield from _of_lanes(seen)


def _of_lanes(seen: Seen) -> Iterator[str]:
    """`Ray: 2 ways, round trip at most 0.10 ms, 9410 to 9420 Mbit/s`."""
    lanes: dict[tuple[str, ...], list[Way]] = defaultdict(list)
    for way in seen.ways:
        lanes[way.lane.purposes].append(way)
    for ways in lanes.values():
        trips = [way.round_trip for way in ways if way.round_trip is not None]
        speeds = [way.rate for way in ways if way.rate is not None]
        words = [f"round trip at most {max(trips) * 1000:.2f} ms"] if trips else []
        if speeds:
            words.append(f"{min(speeds):.0f} to {max(speeds):.0f} Mbit/s")
        if words:
            distant = trips and max(trips) > DISTANT
            yield f"between hosts, for {carried(ways[0].lane)}: {', '.join(words)}" + (
                "; a local network has less than 1 ms" if distant else ""
            )
