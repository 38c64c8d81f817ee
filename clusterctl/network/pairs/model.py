"""Model of the pairs of hosts: lanes, their ends, and measurements. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_interface

from clusterctl.facts.candidates import speed_of
from clusterctl.facts.model import HostFacts
from clusterctl.ray_cluster.topology import Node, Topology


@dataclass(frozen=True)
class End:
    """A host's end of a lane: NIC and address."""

    host: str
    nic: str
    ip: str
    prefix: int  # Prefix length of the address: 24
    mtu: int
    # Mbit/s; None if the NIC does not report it, and for virtual ones, which report a made-up value
    speed: int | None
    mac: str = ""  # Of the NIC: 02:00:00:00:00:01
    # Of all NICs of the host: any of them may answer ARP requests for its addresses
    macs: frozenset[str] = frozenset()
    firewall: str = ""  # What rules over incoming connections there, as HostFacts has it

    def __str__(self) -> str:
        return f"{self.nic} ({self.ip})"


def network(end: End) -> str:
    """Network of the end's address: `10.78.0.0/24`."""
    return str(ip_interface(f"{end.ip}/{end.prefix}").network)


@dataclass(frozen=True)
class Lane:
    """The interfaces that carry one or more kinds of traffic between all hosts."""

    purposes: tuple[str, ...]  # Subset of control (Ray and the API), nccl, gloo
    ends: Mapping[str, End]  # By host. A host without an address on its NIC is left out.


@dataclass(frozen=True)
class HostLink:
    """Measurements of `sender` towards `receiver`: one direction of a pair."""

    lane: Lane
    sender: End
    receiver: End
    # The NIC that packets leave by; "" without a route, None if it could not be determined
    route: str | None
    unbound: str | None = None  # The same for programs that bind no address, such as NCCL
    # MACs that answered for the receiver's address; empty without answer or ARP request
    neighbours: tuple[str, ...] = ()
    # Port to `ok`, `no answer`, `refused`, `no data` (it connects, and nothing arrives), `another
    # program answers`, or the system's error text
    tcp: Mapping[int, str] = field(default_factory=dict)
    # Size of an unfragmented IP packet to its round trip in s, None if lost three times. The
    # mapping is None if raw sockets are not allowed.
    echo: Mapping[int, float | None] | None = None
    largest: int | None = None  # The largest size that passed; None if none was lost
    rate: float | None = None  # Mbit/s; None if not measured
    rated: bool = False  # A measurement of `rate` was tried

    @property
    def round_trip(self) -> float | None:
        """The shortest measured round trip in seconds; None if there is none."""
        return min((seen for seen in (self.echo or {}).values() if seen is not None), default=None)

    @property
    def silent(self) -> bool:
        """Whether no attempt got an answer."""
        tried = bool(self.tcp or self.echo)
        connected = {"ok", "no data"} & {*self.tcp.values()}
        return tried and self.round_trip is None and not connected

    @property
    def broken(self) -> bool:
        """Whether an attempt got no answer, or one from another machine."""
        lost = None in (self.echo or {}).values()
        return lost or any(word != "ok" for word in self.tcp.values())


@dataclass(frozen=True)
class Clock:
    """Seconds that a host's clock is ahead of the operator's; error bound: half a round trip."""

    offset: float
    error: float


@dataclass(frozen=True)
class PairResults:
    """Everything measured between hosts."""

    links: tuple[HostLink, ...]
    clocks: Mapping[str, Clock]
    unverified: Mapping[str, str]  # Hosts that could not be queried, and why
    unrated: str = ""  # Why throughput was measured for some of the pairs only, or for none


def lanes(topology: Topology, facts: Mapping[str, HostFacts]) -> tuple[Lane, ...]:
    """Return one lane for each set of interfaces; purposes that share interfaces share a lane.
    Hosts without facts are left out."""
    nodes = [node for node in topology.nodes if node.host in facts]
    wanted = [("control", [node.control_nic for node in nodes])]
    # NCCL may have several NICs per node: one lane each, up to the smallest number on any node.
    rails = range(min((len(node.nccl_nics) for node in nodes), default=0))
    wanted += (("nccl", [node.nccl_nics[rail] for node in nodes]) for rail in rails)
    wanted.append(("gloo", [node.gloo_nic for node in nodes]))

    found: list[Lane] = []
    for purpose, nics in wanted:
        ends = {}
        for node, nic in zip(nodes, nics, strict=True):
            if end := _end(node, nic, facts[node.host]):
                ends[node.host] = end
        same = next((lane for lane in found if lane.ends == ends), None)
        if same is None:
            found.append(Lane((purpose,), ends))
        elif purpose not in same.purposes:
            found[found.index(same)] = Lane((*same.purposes, purpose), ends)
    return tuple(found)


def _end(node: Node, name: str, facts: HostFacts) -> End | None:
    """Return the node's end on the NIC `name`: the node IP if the NIC has it, else its first
    address of the same family; None without one."""
    nic, six = facts.nic(name), ":" in node.node_ip
    offered = nic.addresses if nic else ()
    held = [a for a in offered if (":" in a.ip) == six and (not six or a.scope == "global")]
    if nic is None or not held:
        return None
    first = next((a for a in held if a.ip == node.node_ip), held[0])
    return End(
        node.host,
        name,
        first.ip,
        first.prefix,
        nic.mtu,
        speed_of(facts, name),
        nic.mac,
        frozenset(each.mac for each in facts.nics),
        facts.firewall,
    )


def default_route_notes(topology: Topology, facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """Note hosts whose default route, which programs use by default, is not on NCCL's NIC."""
    strays = [
        f"{node.host} ({default}, not {' or '.join(node.nccl_nics)})"
        for node in topology.nodes
        if node.host in facts
        and (default := facts[node.host].default_nic)
        and default not in node.nccl_nics
    ]
    if strays:
        yield (
            "the default route does not use the interface that carries NCCL on "
            f"{', '.join(strays)}: harmless here, since NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME "
            "name it"
        )
