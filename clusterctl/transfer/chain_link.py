"""What a chain is made of and what it tells: a host as a link, and how far that host is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clusterctl import deadlines
from clusterctl.transport.base import Transport

CACHE = "/var/cache/clusterctl/blobs"  # Where blobs wait on a host until its engine has taken them

# Bytes of each piece of a placed file that has its own digest; the last one may be shorter.
PIECE = 64 * 1024**2

SLOWEST = 512 * 1024  # Bytes a second below which a transfer is given up


def fetch_limit(size: int) -> float:
    """Seconds that a host may take to get `size` bytes through the chain."""
    return deadlines.FETCH_START + size / SLOWEST


@dataclass(frozen=True)
class Place:
    """Where a blob becomes a file on a host, at once and without a second copy."""

    # Absolute; its directory is made if it is missing. `path.part` holds the bytes until all are
    # there.
    path: str
    # sha256, 64 hexadecimal digits each, of every PIECE bytes. With them, pieces come side by side
    # and a resumed transfer trusts those it has; without, the whole file is hashed again.
    pieces: tuple[str, ...] = ()
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    """One host of a chain."""

    transport: Transport
    address: str  # The IP address that the hosts after it reach it at; its relay listens there
    cache: str = CACHE
    # By digest: blobs that become files. What has no place goes through the cache.
    places: Mapping[str, Place] = field(default_factory=dict)
    # By digest: paths of blobs that this host already has and passes on.
    origin: Mapping[str, str] = field(default_factory=dict)
    speed: int | None = None  # Mbit/s of the network that `address` is on; None where nobody knows
    # argv that starts Python there, such as one inside a container; () looks for the host's.
    python: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return self.transport.host.name


def slow_last(links: Iterable[Link]) -> list[Link]:
    """The slower a host's network is, the later it comes: a chain is as slow as its slowest link
    for all hosts after that one, and not for those before. What nobody knows counts as fast."""
    return sorted(links, key=lambda link: -(link.speed or math.inf))


@dataclass(frozen=True)
class Progress:
    """How far a host is. Sizes in bytes."""

    host: str
    done: int  # Of what was asked for so far, here on disk
    total: int  # What was asked for so far, by its engine, by `fetch` or by the hosts after it
    received: int  # From others in this run, what had to be sent twice included
    rate: float  # Bytes a second, over the last few seconds
    sources: tuple[str, ...] = ()  # Whom it receives from now: names of hosts, or `source`
    waiting: str | None = None  # What it waits for, when nothing came for some seconds
    lost: bool = False  # The chain goes on without it
