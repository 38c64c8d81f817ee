"""What a chain is made of and what it reports: one host as a link, and the progress of a host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clusterctl import deadlines
from clusterctl.containers.meter import MIB
from clusterctl.transfer.relay.upstream import SOURCE
from clusterctl.transport.base import Transport

# Where blobs wait on a host until its engine has taken them.
CACHE = "/var/cache/clusterctl/blobs"

# Bytes of each piece of a placed file that has its own digest; the last one may be shorter.
PIECE = 64 * 1024**2

SLOWEST = 512 * 1024  # Bytes a second below which a transfer is given up


def fetch_limit(size: int) -> float:
    """Seconds that a host may take to get `size` bytes through the chain."""
    return deadlines.FETCH_START + size / SLOWEST


@dataclass(frozen=True)
class FilePlace:
    """Where a blob becomes a file on a host, at once and without a second copy."""

    # Absolute; its directory is made if it is missing. `path.part` holds the bytes until all are
    # there.
    path: str
    # sha256, 64 hexadecimal digits each, of every PIECE bytes. With them, pieces are fetched side
    # by side and a resumed transfer trusts those it has; without, the whole file is hashed again.
    pieces: tuple[str, ...] = ()
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    """One host of a chain."""

    transport: Transport
    address: str  # The IP address at which the hosts after it reach its relay
    cache: str = CACHE
    # By digest: blobs that become files. What has no place goes through the cache.
    places: Mapping[str, FilePlace] = field(default_factory=dict)
    # By digest: paths of blobs that this host already has and passes on.
    origin: Mapping[str, str] = field(default_factory=dict)
    speed: int | None = None  # Mbit/s of the network that `address` is on, if known
    # argv that starts Python there, such as one inside a container; () looks for the host's.
    python: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return self.transport.host.name


def slow_last(links: Iterable[Link]) -> list[Link]:
    """Order links by falling network speed. A slow link delays all hosts after it, and none
    before it. An unknown speed counts as fast."""
    return sorted(links, key=lambda link: -(link.speed or math.inf))


@dataclass(frozen=True)
class LinkProgress:
    """How far a host is. Sizes in bytes."""

    host: str
    done: int  # Of what was asked for so far, here on disk
    total: int  # What was asked for so far, by its engine, by `fetch` or by the hosts after it
    received: int  # From others in this run, what had to be sent twice included
    rate: float  # Bytes a second, over the last few seconds
    sources: tuple[str, ...] = ()  # Whom it receives from now: names of hosts, or `source`
    waiting: str | None = None  # What it waits for, when nothing came for some seconds
    lost: bool = False  # The chain continues without it

    def movement(self, left: int) -> list[str]:
        """In words: the rate, when the `left` bytes will be there, from whom they come, and what
        is waited for."""
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
