"""What pairs of hosts are to one another: who holds which end, and what was seen. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_interface


@dataclass(frozen=True)
class End:
    """Where a host holds a lane."""

    host: str
    nic: str
    ip: str
    prefix: int  # Of the address: 24
    mtu: int
    # Mbit/s; None where the NIC does not know, and for virtual ones, which invent it
    speed: int | None
    mac: str = ""  # Of the NIC: 02:00:00:00:00:01
    # Of all NICs of the host: any of them may answer for an address of it
    macs: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.nic} ({self.ip})"


def network(end: End) -> str:
    """10.78.0.0/24."""
    return str(ip_interface(f"{end.ip}/{end.prefix}").network)


@dataclass(frozen=True)
class Lane:
    """The interfaces that carry one kind of traffic, or several, between all hosts."""

    purposes: tuple[str, ...]  # Of control (Ray and the API), nccl, gloo
    ends: Mapping[str, End]  # By host. A host without an address there is left out.


@dataclass(frozen=True)
class Way:
    """What `sender` saw of its way to `receiver`, one direction of a pair."""

    lane: Lane
    sender: End
    receiver: End
    # The NIC that packets leave by; "" without a route, None where it could not be asked
    route: str | None
    # MACs that answered for the receiver's address; none where they were not asked
    neighbours: tuple[str, ...] = ()
    # Port to `ok`, `no answer`, `refused`, `another program answers`, or the system's words
    tcp: Mapping[int, str] = field(default_factory=dict)
    # Size of an unfragmented IP packet to its round trip in s, None when lost three times. None for
    # all where raw sockets are not allowed.
    echo: Mapping[int, float | None] | None = None
    largest: int | None = None  # The largest size that passed, once some were lost
    rate: float | None = None  # Mbit/s; None where it was not measured
    rated: bool = False  # It was to be measured

    @property
    def round_trip(self) -> float | None:
        """Seconds, the shortest seen."""
        return min((seen for seen in (self.echo or {}).values() if seen is not None), default=None)

    @property
    def silent(self) -> bool:
        """Nothing that was tried came back."""
        tried = bool(self.tcp or self.echo)
        return tried and self.round_trip is None and "ok" not in self.tcp.values()

    @property
    def broken(self) -> bool:
        """Something that was tried did not come back, or not from the receiver."""
        lost = None in (self.echo or {}).values()
        return lost or any(word != "ok" for word in self.tcp.values())


@dataclass(frozen=True)
class Clock:
    """Seconds ahead of the operator's clock, and how wrong that may be: half a round trip."""

    offset: float
    error: float


@dataclass(frozen=True)
class Seen:
    """All that was seen between hosts."""

    ways: tuple[Way, ...]
    clocks: Mapping[str, Clock]
    unproven: Mapping[str, str]  # Hosts that could not be asked, and why
    unrated: str = ""  # Why throughput was measured for a part of the pairs, or for none
