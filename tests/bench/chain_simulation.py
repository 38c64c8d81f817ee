"""How long an image takes to reach hundreds of hosts, by simulation, as a Markdown table.

    .venv/bin/python -m tests.bench.chain_simulation

It moves bytes from host to host, a tenth of a second at a time, and leaves the order of hosts to
clusterctl itself (`ChainOrder`). `tests/lab/test_slow_host.py` compares it with whole hosts. No
root, no lab, two minutes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clusterctl.transfer.chain import REPORT_EVERY, nearest
from clusterctl.transfer.chain_link import LinkProgress
from clusterctl.transfer.chain_order import ChainOrder
from clusterctl.transfer.relay.upstream import LONG_REST, SHORT_STALL, SOURCE
from clusterctl.transfer.relay.wire import BACKLOG

LAYERS = (2700, 2800, 1800, 3000, 850)
"""MB, as they are sent, of the image that was measured on H200 (docs/performance.md)."""

AT_ONCE = 3
"""Layers that an engine requests at a time."""

STEP = 0.1
"""Seconds; a hop takes less."""

LOST_AFTER = 30.0
"""Seconds after which a host that does not answer is lost for the run."""

ACKNOWLEDGEMENTS = 0.02
"""Part of a link's rate, in each direction, that acknowledgements of the other direction take: one
of 52 to 66 bytes for two segments of 1448, 1500 to 1514 with headers. The links have this rate in
each direction."""


@dataclass(frozen=True)
class Member:
    """A host of the simulation. Rates in MB a second."""

    name: str
    receives: float = 118.0  # 1 Gbit/s without headers
    sends: float = 118.0
    unpacks: float = 200.0  # Bytes of layers as they are sent
    rack: int = 0
    away: tuple[float, float] | None = None
    """From when to when it can neither receive nor send; seconds since the first byte."""

    def works(self, now: float) -> bool:
        return self.away is None or not self.away[0] <= now < self.away[1]


@dataclass(frozen=True)
class Site:
    """What bytes have to pass."""

    members: tuple[Member, ...]
    source: float = 118.0
    """MB a second that the source sends."""
    between_racks: float = math.inf
    layers: tuple[float, ...] = LAYERS
    """MB each, in the order in which they are sent and unpacked."""
    hop: float = 0.003
    """Seconds until a relay passes on what it has received."""
    reorders: bool = True
    """Whether the order of hosts changes on the way."""


@dataclass(frozen=True)
class Finished:
    """Seconds until each host had all bytes, and had unpacked them, without the lost ones."""

    received: dict[str, float]
    unpacked: dict[str, float]
    order: tuple[str, ...]


class Simulation:
    """One transfer. Positions are MB of the image from its beginning: a host that is fed by another
    gets the layers in order."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._members = {each.name: each for each in site.members}
        self._order = ChainOrder([each.name for each in site.members])
        self._size = sum(site.layers)
        self._ends = list(itertools.accumulate(site.layers))
        self._has = dict.fromkeys(self._members, 0.0)
        self._reported = dict.fromkeys(self._members, 0.0)
        self._lost: set[str] = set()
        self._upstream = dict.fromkeys(self._members, SOURCE)
        self._resting: dict[tuple[str, str], float] = {}
        self._silent: dict[str, float] = {}
        self._received: dict[str, float] = {}
        self._arrived: dict[str, list[float]] = {name: [] for name in self._members}

    def run(self) -> Finished:
        self._choose(0.0)
        for step in itertools.count(1):
            if len(self._received.keys() | self._lost) == len(self._members):
                break
            self._move(step * STEP)
            if step % round(REPORT_EVERY / STEP) == 0:
                self._second(step * STEP)
        unpacked = {name: self._unpacked(name) for name in self._received}
        return Finished(self._received, unpacked, self._order.hosts)

    def _move(self, now: float) -> None:
        """One step. What an upstream received a hop ago can be received now."""
        site, has, members = self._site, self._has, self._members
        children = Counter(
            up
            for name, up in self._upstream.items()
            if self._lacks(name) and name not in self._lost
        )
        across = sum(
            self._lacks(name) and self._crosses(name, up) for name, up in self._upstream.items()
        )
        before = dict(has)
        for name in self._order.hosts:  # each after its upstream
            member, up = members[name], self._upstream[name]
            if name in self._lost or not self._lacks(name) or not member.works(now):
                continue
            if up == SOURCE:
                rate, there = site.source / children[up], self._size
            else:
                rate = members[up].sends * self._for_data(up, children) / children[up]
                there = has[up] - (has[up] - before[up]) * site.hop / STEP
                if not members[up].works(now) or up in self._lost:
                    rate = 0.0
                if self._crosses(name, up):
                    rate = min(rate, site.between_racks / max(1, across))
            rate = min(rate, member.receives * self._for_data(name, children))
            has[name] = max(has[name], min(has[name] + rate * STEP, there))
            arrived = self._arrived[name]
            while len(arrived) < len(self._ends) and has[name] >= self._ends[len(arrived)] - 1e-6:
                arrived.append(now)
            if not self._lacks(name):
                self._received[name] = now

    def _for_data(self, name: str, children: Counter[str]) -> float:
        """Return the part of a host's rate that is left for the image, in either direction."""
        both = self._lacks(name) and children[name] > 0
        return 1 - ACKNOWLEDGEMENTS if both else 1.0

    def _second(self, now: float) -> None:
        """What relays and the operator's side do about once a second."""
        for name, member in self._members.items():
            if member.works(now):
                self._reported[name] = self._has[name]
            elif member.away and now - member.away[0] > LOST_AFTER:
                self._lost.add(name)
        progress = {name: self._progress(name) for name in self._members}
        if self._site.reorders:
            self._order.observe(now, progress)
        for name, up in self._upstream.items():
            if up != SOURCE and not self._members[up].works(now):
                self._silent.setdefault(name, now)
                if now - self._silent[name] >= SHORT_STALL:
                    self._resting[name, up] = now + LONG_REST
            else:
                self._silent.pop(name, None)
        self._choose(now)

    def _choose(self, now: float) -> None:
        """Each relay fetches from the nearest host before it that does not rest."""
        before: list[str] = []
        for name in self._order.hosts:
            awake = (up for up in nearest(before) if self._resting.get((name, up), 0.0) <= now)
            self._upstream[name] = next(awake, SOURCE)
            if name not in self._lost:
                before.append(name)

    def _progress(self, name: str) -> LinkProgress:
        done, received = self._has[name], int(self._reported[name] * 1e6)
        layer = sum(end <= done for end in self._ends)
        total = self._ends[min(layer + AT_ONCE, len(self._ends)) - 1]
        up = self._upstream[name]
        return LinkProgress(
            name,
            received,
            int(total * 1e6),
            received,
            0.0,
            lost=name in self._lost,
            behind=up != SOURCE and self._has[up] - done >= BACKLOG / 1e6,
        )

    def _unpacked(self, name: str) -> float:
        ready = 0.0
        for arrived, layer in zip(self._arrived[name], self._site.layers, strict=True):
            ready = max(ready, arrived) + layer / self._members[name].unpacks
        return ready

    def _lacks(self, name: str) -> bool:
        return name not in self._received and self._has[name] < self._size - 1e-6

    def _crosses(self, name: str, up: str) -> bool:
        return up != SOURCE and self._members[name].rack != self._members[up].rack


def hosts(count: int, **settings: float) -> tuple[Member, ...]:
    return tuple(Member(f"h{number}", **settings) for number in range(1, count + 1))  # type: ignore[arg-type]


def with_slow(members: Sequence[Member], numbers: Sequence[int], part: float) -> tuple[Member, ...]:
    return tuple(
        replace(each, receives=each.receives * part, sends=each.sends * part)
        if number in numbers
        else each
        for number, each in enumerate(members)
    )


def cases(count: int) -> dict[str, tuple[Site, Callable[[Member], bool]]]:
    """By name: a site, and the hosts whose time counts: those that are not slow themselves."""
    alike, dice = hosts(count), random.Random(count)  # noqa: S311  (the same every time)
    few = sorted(dice.sample(range(count), max(1, count // 100)))
    everyone = lambda _: True  # noqa: E731
    fast = lambda each: each.receives == alike[0].receives  # noqa: E731
    second_half = tuple(replace(each, rack=n * 2 // count) for n, each in enumerate(alike))
    away = {n: (at := dice.uniform(5, 80), at + dice.choice((3, 10, 20, 1e9))) for n in few}
    leaving = tuple(replace(each, away=away.get(n)) for n, each in enumerate(alike))
    unlike = tuple(replace(each, unpacks=dice.uniform(60, 400)) for each in alike)
    middle = with_slow(alike, [count // 2], 0.1)
    three = with_slow(alike, [count // 2 + each for each in range(3)], 0.1)
    sender = tuple(
        replace(each, sends=each.sends * 0.1) if n == count // 2 else each
        for n, each in enumerate(alike)
    )
    return {
        "all alike": (Site(alike), everyone),
        "one in the middle at a tenth": (Site(middle), fast),
        "three beside each other at a tenth": (Site(three), fast),
        "the first one at a tenth": (Site(with_slow(alike, [0], 0.1)), fast),
        "one that sends at a tenth": (Site(sender), everyone),
        "one in a hundred at a tenth": (Site(with_slow(alike, few, 0.1)), fast),
        "two racks, a tenth between them": (
            Site(second_half, between_racks=11.8),
            lambda each: each.rack == 0,
        ),
        "one in a hundred leaves, most come back": (Site(leaving), lambda each: each.away is None),
        "engines that unpack at 60 to 400 MB/s": (Site(unlike), everyone),
    }


def main() -> None:
    limit, counts = sum(LAYERS) / 118.0, (10, 100, 500)
    heads = " | ".join(f"{count} hosts" for count in counts)
    rows = [f"| time, by {limit:.0f} s | {heads} |", "| --- " * (1 + len(counts)) + "|"]
    for name in cases(10):
        cells = []
        for count in counts:
            site, matters = cases(count)[name]
            names = [each.name for each in site.members if matters(each)]
            times = [
                max(
                    map(
                        Simulation(replace(site, reorders=reorders)).run().received.__getitem__,
                        names,
                    )
                )
                for reorders in (False, True)
            ]
            cells.append(", ".join(f"{each / limit:.2f}" for each in times))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    print("\n".join(rows))  # noqa: T201


if __name__ == "__main__":
    main()
