"""Which interface of each host carries the tensors, where the inventory does not say. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.errors import RequirementsNotMet, raise_all
from clusterctl.facts.candidates import Candidate, candidates, ipv6_addresses, rejected
from clusterctl.facts.model import HostFacts
from clusterctl.network.shared_subnets import (
    Place,
    SharedSubnet,
    ambiguous,
    equals_of_best,
    shared_subnets,
    why_best,
)


@dataclass(frozen=True)
class Option:
    """One answer to a tie."""

    text: str
    subnet: str
    nics: Mapping[str, str]
    """By host, what `nics.nccl` would be."""


class Undecided(RequirementsNotMet):
    """Nothing speaks for one of several ways: a question for the user, with its answers."""

    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """The interface of each host, and the reason that holds for all."""

    places: Mapping[str, Place]
    reason: str


def choose_fabric(
    facts: Mapping[str, HostFacts],
    named: Mapping[str, Candidate] | None = None,
    first: Mapping[str, str] | None = None,
) -> Fabric:
    """The fabric of the hosts of `facts`.

    named  hosts whose interface the inventory says: the others must reach it
    first  interfaces that win among equals, where there is only one host

    Raises RequirementsNotMet: no subnet is shared, or several are equally good.
    """
    offered = {
        name: (named[name],) if named and name in named else candidates(of_host)
        for name, of_host in facts.items()
    }
    ranked = shared_subnets(offered)
    if not ranked:
        return _only_interfaces(facts, offered)
    tied = equals_of_best(ranked)
    if len(tied) > 1 and len(facts) > 1:
        raise _several_subnets(tied)
    return fabric_in(tied[0], ranked, first=first or {})


def fabric_in(
    best: SharedSubnet, ranked: Sequence[SharedSubnet], *, first: Mapping[str, str]
) -> Fabric:
    """The fabric in the subnet `best` of `ranked`. Raises RequirementsNotMet for each host that
    has several interfaces there, equally good."""
    if len(best.places) > 1:
        raise_all(_several_interfaces(name, best, places) for name, places in ambiguous(best))
    chosen = {
        name: next((p for p in places if p.nic.nic == first.get(name)), places[0])
        for name, places in best.places.items()
    }
    return Fabric(chosen, why_best((best, *(each for each in ranked if each is not best))))


def _only_interfaces(
    facts: Mapping[str, HostFacts], offered: Mapping[str, Sequence[Candidate]]
) -> Fabric:
    """Hosts in different subnets, each with one interface: there is nothing to choose, and a
    router between them. Raises RequirementsNotMet where there is."""
    lone = {name: one[0] for name, one in offered.items() if len(one) == 1}
    if len(lone) < len(facts) or any(len(nic.addresses) != 1 for nic in lone.values()):
        raise _no_shared_subnet(facts, offered)
    places = {name: Place(str(nic.addresses[0].ip), nic) for name, nic in lone.items()}
    return Fabric(places, "the only usable interface of every host; a router joins their subnets")


def _several_subnets(tied: Sequence[SharedSubnet]) -> Undecided:
    options = tuple(_option(each) for each in tied)
    question = Undecided(
        f"{len(tied)} subnets that all hosts share are equally good for the tensors",
        hint="say which in the inventory: "
        + " or ".join(f"network: {{subnet: {option.subnet}}}" for option in options),
        detail="\n".join(option.text for option in options),
    )
    question.options = options
    return question


def _option(shared: SharedSubnet) -> Option:
    nics = {name: alike[0].nic.nic for name, alike in shared.places.items()}
    names = ", ".join(f"{name} {nic}" for name, nic in nics.items())
    return Option(f"{shared}: {names}", str(shared.subnet), nics)


def _several_interfaces(host: str, shared: SharedSubnet, places: Sequence[Place]) -> Undecided:
    names = [place.nic.nic for place in places]
    options = tuple(
        Option(
            f"{place.nic.nic} {place.ip}: {place.nic}", str(shared.subnet), {host: place.nic.nic}
        )
        for place in places
    )
    question = Undecided(
        f"has {' and '.join(names)} in {shared.subnet}, equally good",
        host=host,
        hint=f"say which in the inventory, under hosts.{host}: "
        + " or ".join(f"nics: {{nccl: {name}, gloo: {name}}}" for name in names),
        detail="\n".join(option.text for option in options),
    )
    question.options = options
    return question


def _no_shared_subnet(
    facts: Mapping[str, HostFacts], offered: Mapping[str, Sequence[Candidate]]
) -> RequirementsNotMet:
    """With a line for every interface of every host, and what speaks against it."""
    bare = [name for name in facts if not offered[name]]
    only_ipv6 = [name for name in bare if any(map(ipv6_addresses, facts[name].nics))]
    cause = "no IPv4 subnet is shared by all hosts"
    if bare:
        cause = f"no usable interface with an IPv4 address on {', '.join(bare)}"
    if only_ipv6:
        cause += f" (IPv6 only: {', '.join(only_ipv6)})"
    subnet = "an IPv6 subnet" if only_ipv6 else "one that a router reaches"
    return RequirementsNotMet(
        cause,
        hint=f"give the hosts a network in common; or name what to use: network.subnet for {subnet}"
        ", or hosts.NAME.node_ip and hosts.NAME.nics of every host",
        detail="\n".join(_table(facts, offered)),
    )


def _table(facts: Mapping[str, HostFacts], offered: Mapping[str, Sequence[Candidate]]) -> list[str]:
    rows = [row for name, of_host in facts.items() for row in _rows(name, of_host, offered[name])]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]


def _rows(
    name: str, facts: HostFacts, offered: Sequence[Candidate]
) -> Iterator[tuple[str, str, str, str]]:
    for nic in offered:
        yield name, nic.nic, " ".join(str(address) for address in nic.addresses), str(nic)
    names = {nic.nic for nic in offered}
    for other in rejected(facts):
        if other.nic not in names:
            yield name, other.nic, "", f"not used: {other.reason}"
