"""The order of hosts in a chain: before the first byte by what is known of them, then by what they
receive.

All hosts after a slow one get no more than it does, so slow hosts come last. A host is slow if it
receives less than the host before it does. Whether that is due to the host itself, to the host
before it or to the network between them is found by trying: the host is moved to the end, and if
the next one is no faster in its place, the host before them is moved instead. What a source can
send, or a host that is complete, is not known: there the next two hosts change places, and the one
that was first is moved to the end if the other is faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterctl.transfer.chain_link import Link, LinkProgress
from clusterctl.transfer.relay.upstream import SOURCE
from clusterctl.units import MIB

# Part of what the host before it receives, below which a host is slow. Reports are up to REPORT
# seconds old, so the more is needed the less time was measured.
PART = 0.8
REPORT = 1.0

SETTLE = 1.0  # Seconds after a change of the order that are not measured
SHORTEST, LONGEST = 4.0, 20.0  # Seconds to measure

# Seconds that the host after a source, or after a host that is complete, has to go at least, if
# another is to be tried in its place.
WORTH_A_TRIAL = 30.0

BETTER = 1.2  # A trial has helped if what comes after it is this many times as fast


def first_order(links: Iterable[Link]) -> list[Link]:
    """Sort links by falling network speed, where an unknown one counts as fast; among equals, those
    of a rack together, so that each network between racks is crossed once."""
    links = list(links)
    racks = list(dict.fromkeys(link.rack for link in links))
    return sorted(links, key=lambda link: (-(link.speed or math.inf), racks.index(link.rack)))


@dataclass(frozen=True)
class _Order:
    body: tuple[str, ...]
    # Hosts that were moved to the end, and bytes per second that they received; fast ones first
    tail: tuple[tuple[float, str], ...] = ()

    def with_last(self, host: str, rate: float) -> _Order:
        body = tuple(each for each in self.body if each != host)
        return _Order(body, tuple(sorted((*self.tail, (rate, host)), reverse=True)))

    def with_later(self, host: str) -> _Order:
        """With `host` and the one after it exchanged."""
        first, *others = self.body[self.body.index(host) :]
        return replace(self, body=(*self.body[: -len(others) - 1], others[0], first, *others[1:]))


@dataclass(frozen=True)
class _Trial:
    before: str  # The host that the slow one received from, or SOURCE
    slow: str
    rate: float  # Bytes per second that it received
    original: _Order
    moved: str | None  # `slow`, then `before`; None: the first two changed places


class ChainOrder:
    """The order of `hosts`, which `observe` changes. Without a source the first host has all bytes,
    and stays the first. `say` gets a host and a sentence when it was moved and that helped."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        has_source: bool = True,
        say: Callable[[str, str], None] = lambda _host, _text: None,
    ) -> None:
        self._order, self._say = _Order(tuple(hosts)), say
        self._fixed = hosts[0] if hosts and not has_source else None
        self._trial: _Trial | None = None
        self._accepted: set[str] = set()  # Those after which no host is moved any more
        self._measured: dict[str, int] = {}  # Bytes that each host had received `_since`
        self._since = -math.inf

    @property
    def hosts(self) -> tuple[str, ...]:
        return (*self._order.body, *(host for _, host in self._order.tail))

    def observe(self, now: float, progress: Mapping[str, LinkProgress]) -> bool:
        """Decide on the order by what hosts have received by `now`, in seconds; return whether it
        changed. To be called about once a second."""
        seconds = now - self._since
        if seconds < (SHORTEST if self._measured else SETTLE):
            return False
        rates = {
            host: (progress[host].received - count) / seconds
            for host, count in self._measured.items()
        }
        if not any(rates.values()) or seconds > LONGEST:
            self._since = now
            self._measured = {host: progress[host].received for host in self.hosts}
            return False
        # A host that waits for something, such as a layer that others get later, is not slow.
        left = {
            host: each.total - each.done
            for host, each in progress.items()
            if not (each.lost or each.waiting)
            and each.total - each.done > max(MIB, rates[host] * REPORT)
        }
        before = self.hosts
        if self._trial:
            self._judge(self._trial, rates, left)
        if self._trial is None and self.hosts == before:
            self._try(seconds, rates, left, progress)
        if self.hosts == before:
            return False
        self._since, self._measured = now, {}
        return True

    def _try(
        self,
        seconds: float,
        rates: Mapping[str, float],
        left: Mapping[str, int],
        progress: Mapping[str, LinkProgress],
    ) -> None:
        """Move the first slow host to the end, if others come after it. `left`: bytes that hosts
        still have to receive."""
        body = [host for host in self._order.body if not progress[host].lost]
        while body and body[-1] not in left:
            body.pop()
        for before, host in itertools.pairwise((SOURCE, *body[:-1])):
            both = before in left and host in left and before not in self._accepted
            if both and rates[host] < rates[before] * (PART - REPORT / seconds):
                self._trial = _Trial(before, host, rates[host], self._order, host)
                self._order = self._order.with_last(host, rates[host])
                return
        for before, host, after in zip((SOURCE, *body), body, body[1:], strict=False):
            complete = before == SOURCE or progress[before].done >= progress[before].total
            if complete and left.keys() >= {host, after} and before not in self._accepted:
                if left[host] > rates[host] * WORTH_A_TRIAL:
                    self._trial = _Trial(before, host, rates[host], self._order, None)
                    self._order = self._order.with_later(host)
                return

    def _judge(self, trial: _Trial, rates: Mapping[str, float], left: Mapping[str, int]) -> None:
        """Keep the trial's change if it helped, else try the other one or give up."""
        body = self._order.body
        follows = body.index(trial.before) + 1 if trial.before in body else 0
        waiting = [host for host in body[follows:] if host in left]
        self._trial = None
        if not waiting:
            return
        in_its_place = trial.slow if trial.moved == trial.before else waiting[0]
        rate = rates[in_its_place]
        if rate >= trial.rate * BETTER:
            if trial.moved is None:
                self._order = self._order.with_last(trial.slow, trial.rate)
            verb = "sent" if trial.moved == trial.before else "received"
            self._say(
                trial.moved or trial.slow,
                f"moved to the end of the chain: it {verb} {trial.rate / MIB:.1f} MiB/s, "
                f"without it {in_its_place} receives {rate / MIB:.1f} MiB/s",
            )
        elif trial.moved == trial.slow:
            self._trial = replace(trial, moved=trial.before)
            self._order = trial.original.with_last(trial.before, rates[trial.before])
        else:
            self._accepted.add(trial.before)
            if trial.moved is not None:
                self._order = trial.original
