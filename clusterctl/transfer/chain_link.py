"""Links of a chain (one host each), and the progress of a host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl import deadlines
from clusterctl.errors import ClusterctlError
from clusterctl.inventory.outside import Outside
from clusterctl.transfer.relay.upstream import SOURCE
from clusterctl.transport.base import Transport
from clusterctl.units import MIB

# Directory on a host for blobs that its engine has not loaded yet.
CACHE = "/var/lib/clusterctl/blobs"

# Bytes of a piece: placed files have a digest for each piece; the last one may be shorter.
PIECE = 64 * 1024**2

SLOWEST = 512 * 1024  # Bytes per second; slower transfers time out


def fetch_limit(size: int) -> float:
    """Timeout in seconds for a host to receive `size` bytes through the chain."""
    return deadlines.FETCH_START + size / SLOWEST


@dataclass(frozen=True)
class FilePlace:
    """The file that a host writes a blob to directly, with no copy in the cache."""

    # Absolute; a missing directory is created. `path.part` holds the bytes until they are complete.
    path: str
    # SHA-256, 64 hexadecimal digits each, of every PIECE bytes. With them, pieces are fetched in
    # parallel and a resumed transfer keeps those it has; without, the whole file is hashed again.
    pieces: tuple[str, ...] = ()
    mode: int = 0o644


@dataclass(frozen=True)
class Web:
    """How a host reads blobs from a hub."""

    urls: Mapping[str, str]  # By `Blob.hex`
    headers: Mapping[str, str] = field(repr=False)  # Secret: they authenticate the user
    outside: Outside
    # Returns the error for a blob that the hub will not serve, by `Blob.hex`, and what the relay
    # says of it: "text"; "status" and "headers" if the hub answered.
    unserved: Callable[[str, Mapping[str, Any]], ClusterctlError] = field(repr=False)


@dataclass(frozen=True)
class Link:
    """One host of a chain."""

    transport: Transport
    address: str  # IP address at which later hosts of the chain reach its relay
    cache: str = CACHE
    # By digest: the files that blobs become. Other blobs go through the cache.
    places: Mapping[str, FilePlace] = field(default_factory=dict)
    # By digest: paths of blobs that this host already has and serves.
    origin: Mapping[str, str] = field(default_factory=dict)
    web: Web | None = None  # It reads from a hub what no host before it has
    speed: int | None = None  # Mbit/s of the network that `address` is on, if known
    # argv of the Python that runs the relay; (): the host's first suitable one.
    python: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return self.transport.host.name

    @property
    def rack(self) -> str:
        """The host's label `rack`."""
        return self.transport.host.labels.get("rack", "")


def in_order(links: Iterable[Link]) -> list[Link]:
    """Return the links in the order of their chain: first the one that reads from a hub.

    A slow host limits all hosts after it, so they are sorted by network speed, fastest first; an
    unknown speed counts as fast. Among equals, hosts of a rack follow each other, so that each
    network between racks is crossed once.
    """
    links = list(links)
    racks = list(dict.fromkeys(link.rack for link in links))

    def place(link: Link) -> tuple[bool, float, int]:
        return link.web is None, -(link.speed or math.inf), racks.index(link.rack)

    return sorted(links, key=place)


@dataclass(frozen=True)
class LinkProgress:
    """Progress of one host. Sizes in bytes."""

    host: str
    done: int  # Requested bytes that are on its disk
    total: int  # Requested so far by its engine, by `fetch` or by the hosts after it
    received: int  # From its upstreams in this run, bytes that were sent twice included
    rate: float  # Bytes per second, over the last few seconds
    sources: tuple[str, ...] = ()  # Upstreams it receives from now: names of hosts, or `source`
    waiting: str | None = None  # The reason, when nothing has arrived for some seconds
    lost: bool = False  # The chain continues without it

    def movement(self, left: int) -> list[str]:
        """Return phrases for a progress line: the rate, the time until `left` bytes have arrived,
        the upstreams, and what the host waits for."""
        parts = []
        if self.rate > 0 and left:
            parts.append(f"{self.rate / MIB:.1f} MiB/s")
            parts.append(f"{left / self.rate:.0f} s left")
        if self.sources:
            names = ("this machine" if name == SOURCE else name for name in self.sources)
            parts.append(f"from {', '.join(names)}")
        if self.waiting:
            parts.append(self.waiting)
        return parts
