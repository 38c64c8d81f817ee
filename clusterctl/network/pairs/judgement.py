"""Convert measurements between hosts to problems and notes: one for each cause, however many pairs
it affects. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.cluster_requirements import clocks_apart
from clusterctl.network.pairs.faults import PairFault, carried, fault_of
from clusterctl.network.pairs.model import End, PairResults, Way, network

CLOCKS_WITHIN = 1.0  # seconds, beside the measurement's own error

# Seconds of a round trip: ten times what a busy switch takes. Tensor parallelism waits for about a
# hundred of them per token.
DISTANT = 0.005

NAMED = 3  # peers named in a message; the others are only counted


def problems(seen: PairResults, ports: Mapping[int, str]) -> list[RequirementsNotMet]:
    """Return one problem for each cause. `ports`: Ray's ports with their names."""
    faults = [fault for way in _without_proxies(seen.ways) if (fault := fault_of(way, ports))]
    groups: dict[tuple[str, ...], list[PairFault]] = defaultdict(list)
    for fault in _without_consequences(faults):
        groups[fault.kind, "".join(fault.way.lane.purposes)].append(fault)
    found = [problem for group in groups.values() for problem in _of_group(group)]
    offsets = {host: clock.offset for host, clock in seen.clocks.items()}
    limits = {host: CLOCKS_WITHIN + clock.error for host, clock in seen.clocks.items()}
    return [*found, *clocks_apart(offsets, limits)]


def _without_proxies(ways: Sequence[Way]) -> list[Way]:
    """Return the same ways without MACs that answer for several hosts: those of a router that
    answers for all, as in cloud networks."""
    answers: dict[str, set[str]] = defaultdict(set)
    for way in ways:
        for mac in set(way.neighbours) - way.receiver.macs:
            answers[mac].add(way.receiver.host)
    proxies = {mac for mac, hosts in answers.items() if len(hosts) > 1}
    return [
        replace(way, neighbours=tuple(mac for mac in way.neighbours if mac not in proxies))
        for way in ways
    ]


def _without_consequences(faults: Sequence[PairFault]) -> Iterator[PairFault]:
    """Yield the faults less those that follow from others: silence, from a wrong route in the other
    direction; any fault of an address, from another machine having it."""
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


def _of_group(faults: Sequence[PairFault]) -> Iterator[RequirementsNotMet]:
    """Yield problems, first of the host that most pairs have in common, together with
    those pairs."""

    def blamed(fault: PairFault) -> tuple[str, ...]:
        ends = (fault.way.sender.host, fault.way.receiver.host)
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
        end, other = _ends(first.way, host)
        peers = dict.fromkeys(_ends(fault.way, host)[1] for fault in own)
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


def _ends(way: Way, host: str) -> tuple[End, End]:
    """Return the end of `host`, then the other."""
    mine = way.sender.host == host
    return (way.sender, way.receiver) if mine else (way.receiver, way.sender)


def notes(seen: PairResults) -> Iterator[str]:
    """Yield the measured values, and what could not be measured."""
    for host, why in seen.unproven.items():
        yield f"{host}: not proven: {why}"
    if any(way.echo is None for way in seen.ways):
        yield "packet sizes are not proven: raw sockets need root on the hosts"
    if seen.unrated:
        yield seen.unrated
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
            # `between hosts, for Ray: round trip at most 0.10 ms, 9410 to 9420 Mbit/s`
            distant = trips and max(trips) > DISTANT
            yield f"between hosts, for {carried(ways[0].lane)}: {', '.join(words)}" + (
                "; a local network has less than 1 ms" if distant else ""
            )
