"""The order of hosts in a chain: before the first byte by what is known of them, then by what they
receive.

All hosts after a slow one get no more than it does, so slow hosts come last. A host is slow if it
receives less than the host before it, which has more ready. Whether that is due to the host itself,
to the host before it or to the network between them is found by trying: the host is moved to the
end, and if the next one is no faster in its place, the host before them is moved instead, then
several slow hosts at once. What a source can send, or a host that is complete, is not known: there
the next hosts get the first place, one after the other, until one of them is faster.
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

# Seconds and bytes that the host after a source, or after a host that is complete, must have to go
# for each host that is tried in its place. Each change sends some 4 MB twice: what is on its way.
WORTH_SECONDS, WORTH_BYTES = 30.0, 400 * MIB

BETTER = 1.2  # A trial has helped if what comes after it is this many times as fast

ADJACENT = 4  # Slow hosts, one after the other, that are told from a slow network


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

    def with_last(self, *moved: tuple[float, str]) -> _Order:
        hosts = {host for _, host in moved}
        body = tuple(each for each in self.body if each not in hosts)
        return _Order(body, tuple(sorted((*self.tail, *moved), reverse=True)))

    def with_before(self, host: str, moved: str) -> _Order:
        """With `moved` right before `host`."""
        body = [each for each in self.body if each != moved]
        body.insert(body.index(host), moved)
        return replace(self, body=tuple(body))


@dataclass(frozen=True)
class _Trial:
    before: str  # The host that the slow ones receive from, or SOURCE
    # The slow ones, and bytes per second of each in this place: no more than of the first one
    slow: tuple[tuple[float, str], ...]
    original: _Order
    # To the end: the slow ones, or `before`; nobody: another host was put before the slow ones
    moved: tuple[tuple[float, str], ...] = ()

    @property
    def has_moved_before(self) -> bool:
        return self.before in {host for _, host in self.moved}


class ChainOrder:
    """The order of `hosts`, which `observe` changes. A first host that has all bytes stays the
    first. `say` gets a host and a sentence when it was moved and that helped."""

    def __init__(
        self, hosts: Sequence[str], *, say: Callable[[str, str], None] = lambda _host, _text: None
    ) -> None:
        self._order, self._say = _Order(tuple(hosts)), say
        self._trial: _Trial | None = None
        self._accepted: set[str] = set()  # Those after which no host is moved any more
        self._settled = -math.inf  # When measuring begins
        # When each host was first seen to receive since then, and the bytes that it had by then
        self._starts: dict[str, tuple[float, int]] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        order = self._order  # other threads ask, too
        return (*order.body, *(host for _, host in order.tail))

    def observe(self, now: float, progress: Mapping[str, LinkProgress]) -> bool:
        """Decide on the order by what hosts have received by `now`, in seconds; return whether it
        changed. To be called about once a second."""
        if now < self._settled:
            return False
        rates = self._measure(now, progress)
        left = {
            host: progress[host].total - progress[host].done
            for host, rate in rates.items()
            if not progress[host].lost
            and progress[host].total - progress[host].done > max(MIB, rate * REPORT)
        }
        before = self.hosts
        if self._trial and rates:
            self._judge(now, self._trial, rates, left)
        if self._trial is None and self.hosts == before:
            self._try(now, rates, left, progress)
        if self.hosts == before:
            return False
        self._settled = now + SETTLE
        self._starts.clear()
        return True

    def _measure(self, now: float, progress: Mapping[str, LinkProgress]) -> dict[str, float]:
        """Return bytes per second of the hosts that have been receiving for SHORTEST seconds; those
        that start later than others, or wait, are not slow."""
        for host, each in progress.items():
            if each.waiting or not each.received:
                self._starts.pop(host, None)
            elif now - self._starts.get(host, (-math.inf, 0))[0] > LONGEST:
                self._starts[host] = (now, each.received)
        rates = {
            host: (progress[host].received - count) / (now - since)
            for host, (since, count) in self._starts.items()
            if now - since >= SHORTEST
        }
        if rates and not any(rates.values()):  # the source has paused
            self._starts.clear()
            return {}
        return rates

    def _try(
        self,
        now: float,
        rates: Mapping[str, float],
        left: Mapping[str, int],
        progress: Mapping[str, LinkProgress],
    ) -> None:
        """Move the first slow host to the end, if others come after it. `left`: bytes that hosts
        still have to receive."""
        body = [host for host in self._order.body if not progress[host].lost]
        while body and progress[body[-1]].done >= progress[body[-1]].total:
            body.pop()
        for before, host in itertools.pairwise(body[:-1]):
            if left.keys() >= {before, host} and before not in self._accepted:
                seconds = now - max(self._starts[before][0], self._starts[host][0])
                # One that waits for bytes that the host before it has not got either is not slow.
                late = progress[host].behind or not rates[host]
                if late and rates[host] < rates[before] * (PART - REPORT / seconds):
                    slow = ((rates[host], host),)
                    self._begin(_Trial(before, slow, self._order, moved=slow))
                    return
        for before, host in itertools.pairwise((SOURCE, *body)):
            complete = before == SOURCE or progress[before].done >= progress[before].total
            if complete and host in left and before not in self._accepted:
                others = [each for each in body[body.index(host) + 1 :] if each in left]
                if others and _is_worth(1, left[host], rates[host]):
                    self._begin(_Trial(before, ((rates[host], host),), self._order), others[0])
                return

    def _begin(self, trial: _Trial, ahead: str | None = None) -> None:
        """Change the order for `trial`. `ahead`: the host to be put before the slow ones."""
        self._trial, self._order = trial, trial.original.with_last(*trial.moved)
        if ahead is not None:
            self._order = self._order.with_before(trial.slow[0][1], ahead)

    def _judge(
        self, now: float, trial: _Trial, rates: Mapping[str, float], left: Mapping[str, int]
    ) -> None:
        """Keep the trial's change if it helped, else try another one or give up."""
        (rate, first), slow = trial.slow[0], trial.slow
        original, place = trial.original.body, 0
        if trial.before != SOURCE:
            place = original.index(trial.before) + (not trial.has_moved_before)
        in_its_place = next((host for host in self._order.body[place:] if host in left), None)
        if in_its_place is None and now < self._settled + LONGEST:
            return
        self._trial = None
        if in_its_place is None:
            return
        found = rates[in_its_place]
        if found > rate * BETTER:
            if not trial.moved:
                self._accepted.add(trial.before)
            for was, host in trial.moved:
                verb = "sent" if host == trial.before else "received"
                self._say(
                    host,
                    f"moved to the end of the chain: it {verb} {was / MIB:.1f} MiB/s, "
                    f"without it {in_its_place} receives {found / MIB:.1f} MiB/s",
                )
            return
        if not trial.has_moved_before:
            slow = (*slow, (found, in_its_place))
        further = [host for host in original[original.index(slow[-1][1]) + 1 :] if host in left]
        if trial.moved and len(trial.slow) == 1:
            self._begin(replace(trial, slow=slow, moved=((rate, trial.before),)))
        elif further and len(slow) <= ADJACENT and trial.moved:
            self._begin(replace(trial, slow=slow, moved=slow))
        elif further and len(slow) <= ADJACENT and _is_worth(len(slow), left.get(first, 0), rate):
            self._begin(replace(trial, slow=slow), further[0])
        else:
            self._accepted.add(trial.before)
            self._order = trial.original


def _is_worth(trials: int, left: int, rate: float) -> bool:
    """Return whether a host that has `left` bytes to go is to lose its place for so many trials."""
    return left > trials * max(WORTH_BYTES, WORTH_SECONDS * rate)
