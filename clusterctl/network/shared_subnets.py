"""The subnet that carries the tensors, where the inventory leaves it open. Pure.

Of the subnets in which every host has an address the one wins whose slowest link is fastest; among
equals the one with RDMA, then near the GPUs, then apart from the default route, then with the
larger MTU. What is still equal then is a question for the user: a guess would be wrong half the
time, and show as slowness or as a hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from clusterctl.facts.candidates import Candidate, speed_text

Rank = tuple[int, bool, bool, bool, int]
"""Slowest link in Mbit/s (0: not known), RDMA, near the GPUs, apart from the default route,
smallest MTU: the larger, the better."""


@dataclass(frozen=True)
class Place:
    """Where a host is in a subnet."""

    ip: str
    nic: Candidate


@dataclass(frozen=True)
class SharedSubnet:
    """A subnet and, by host, the interfaces there: one each, unless several are alike."""

    subnet: IPv4Network
    places: Mapping[str, tuple[Place, ...]]

    @property
    def rank(self) -> Rank:
        return _rank([place.nic for alike in self.places.values() for place in alike[:1]])

    def __str__(self) -> str:
        """`10.0.0.0/24 (100 Gbit/s, MTU 9000, RDMA)`, by the least of its hosts."""
        speed, rdma, near, _, mtu = self.rank
        parts = [speed_text(speed or None), f"MTU {mtu}"]
        parts += ["RDMA"] if rdma else []
        parts += ["near the GPUs"] if near else []
        return f"{self.subnet} ({', '.join(parts)})"


def shared_subnets(hosts: Mapping[str, Sequence[Candidate]]) -> tuple[SharedSubnet, ...]:
    """Subnets in which every one of `hosts` has an interface, the best first, equals in the
    order of their addresses."""
    found = {name: _by_subnet(candidates) for name, candidates in hosts.items()}
    common = set.intersection(*(set(subnets) for subnets in found.values())) if found else set()
    shared = [
        SharedSubnet(subnet, {name: _best(subnets[subnet]) for name, subnets in found.items()})
        for subnet in sorted(common)
    ]
    return tuple(sorted(shared, key=lambda each: each.rank, reverse=True))


def equals_of_best(ranked: Sequence[SharedSubnet]) -> tuple[SharedSubnet, ...]:
    """The best of `ranked`, and those that are just as good."""
    return tuple(each for each in ranked if each.rank == ranked[0].rank)


def why_best(ranked: Sequence[SharedSubnet]) -> str:
    """Why the first of `ranked` was chosen, with the figures that decided."""
    best, *others = ranked
    if not others:
        return f"the only subnet that all hosts share, {best}"
    second = others[0]
    pairs = zip(best.rank, second.rank, _BETTER, strict=True)
    decided = next((words for mine, others, words in pairs if mine != others), "named")
    return f"{best}, {decided.format(second)}"


_BETTER = (
    "faster than {}",
    "as fast as {}, and has RDMA",
    "as fast as {}, and nearer to the GPUs",
    "as fast as {}, which has the default route",
    "as fast as {}, and has the larger MTU",
)


def _by_subnet(candidates: Sequence[Candidate]) -> dict[IPv4Network, list[Place]]:
    """/32 addresses are alone in their network: no other host is there."""
    found: dict[IPv4Network, list[Place]] = {}
    for candidate in candidates:
        for address in candidate.addresses:
            places = found.setdefault(address.network, [])
            # Of several addresses on one interface the first is the one it was set up with.
            if address.network.prefixlen < 32 and all(p.nic != candidate for p in places):
                places.append(Place(str(address.ip), candidate))
    return {subnet: places for subnet, places in found.items() if places}


def _best(places: Sequence[Place]) -> tuple[Place, ...]:
    best = max(_rank([place.nic]) for place in places)
    return tuple(place for place in places if _rank([place.nic]) == best)


def _rank(nics: Sequence[Candidate]) -> Rank:
    return (
        min(nic.speed or 0 for nic in nics),
        all(nic.rdma for nic in nics),
        all(nic.near_gpus for nic in nics),
        not any(nic.default_route for nic in nics),
        min(nic.mtu for nic in nics),
    )


def ambiguous(shared: SharedSubnet) -> Iterator[tuple[str, tuple[Place, ...]]]:
    """Hosts with several interfaces in this subnet that are alike."""
    yield from ((name, places) for name, places in shared.places.items() if len(places) > 1)
