"""How many replicas of a service are asked: as few as keep its targets. Pure.

The gateway sends requests to the first ones in equal parts. The others are spare: they are asked
where the first ones fail, or once more are needed. A replica that is not asked falls asleep after
its idle time, and its next request wakes it. So no gateway has to order anything: each decides
for itself, by what the metrics of those say that it asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from clusterctl.node.endpoint import Reading
from clusterctl.node.timing import Timing

FULL_CACHE = 0.9
"""Part of a KV cache in use from which vLLM may soon have to preempt requests."""
MOST_LATE = 0.02
"""Part of the first tokens that may come after the target. Their 99th percentile is to be within
it, and a second has too few of them to tell 1 in 100."""
ROOM = 0.7
"""Part of what was too much at last, and of a KV cache, that fewer replicas may have."""
_DRAINS = 0.9
"""A queue that has shrunk to this part of itself within `scale_every`, and by more than one, goes
away by itself."""
_ENOUGH_TOKENS = 3
"""First tokens that are judged together."""
_JUDGED = 30.0
"""Seconds after which such a judgement says nothing any more."""


@dataclass(frozen=True)
class ScalingTarget:
    """What is to be kept: nobody waits for a place in a batch, KV caches have room, and the first
    token comes within `ttft` seconds; 0: whenever."""

    least: int  # Replicas that are asked in any case
    ttft: float = 0.0


class Scaling:
    """Decides for one service. Times named `now` are monotonic seconds."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._began: Optional[float] = None
        self._number = 0  # Of replicas that are to be asked; fewer if fewer are ready
        self._asked: Tuple[str, ...] = ()
        self._ready_since: Dict[str, float] = {}
        self._looked = self._changed = float("-inf")
        self._short: Optional[float] = None  # Since when the target is missed
        self._kept = True  # Whether it was not, at the last look
        self._enough: Optional[float] = None  # Since when one replica less would do
        self._most = float("inf")  # Requests of a replica with which the target was missed
        self._waiting = 0.0
        self._first_tokens = FirstTokens()
        self.event = ""  # What changed with the last call, and why

    def asked(
        self,
        now: float,
        target: ScalingTarget,
        ready: Sequence[str],
        readings: Mapping[str, Reading],
    ) -> FrozenSet[str]:
        """Return which servers are needed now, of those that are `ready`, in their order."""
        self.event = ""
        self._ready_since = {name: self._ready_since.get(name, now) for name in ready}
        if ready:
            self._began = now if self._began is None else self._began
        least = max(target.least, 1)
        self._number = max(self._number, least)
        self._asked = self._chosen(now, ready)
        if now - self._looked >= self._timing.scale_every:
            self._looked = now
            self._follow(now, target, least, ready, readings)
            self._asked = self._chosen(now, ready)
        return frozenset(self._asked)

    def _chosen(self, now: float, ready: Sequence[str]) -> Tuple[str, ...]:
        """Return the first ones, except that one which was not ready lately is in nobody's place: a
        change is a reload of the gateway, and it may not stay ready."""

        def rank(name: str) -> bool:
            lately = now - self._ready_since[name] < self._timing.scale_calm
            return lately and name not in self._asked

        return tuple(sorted(ready, key=rank)[: self._number])

    def _follow(
        self,
        now: float,
        target: ScalingTarget,
        least: int,
        ready: Sequence[str],
        readings: Mapping[str, Reading],
    ) -> None:
        if self._began is not None and now - self._began < self._timing.scale_settle:
            # Of a gateway that has just started: those that were asked before have requests
            busy = sum(readings[name].running > 0 for name in ready)
            self._number = max(self._number, busy)
        asked = [readings[name] for name in self._asked if name in readings]
        if not asked:
            return
        late = self._first_tokens.late(now, target.ttft, readings)
        why = self._missed(target, asked, late)
        requests = sum(one.running + one.waiting for one in asked)
        twice, self._kept = self._kept and not why, not why
        if why:
            self._enough = None
            self._short = now if self._short is None else self._short
            settled = now - self._changed >= self._timing.scale_settle
            lasts = now - self._short >= self._timing.scale_patience
            if settled and lasts:
                self._most = requests / len(asked)
                more = min(2 * len(asked), len(ready))
                self._ask(now, max(self._number, more), ready, why)
            return

        if twice:  # One look may fall between the end of a request and the next one
            self._short = None
        self._most = max(self._most, requests / len(asked))
        fewer = self._number - 1
        if fewer < least or not self._would_do(fewer, asked):
            self._enough = None
            return
        self._enough = now if self._enough is None else self._enough
        if now - self._enough >= self._timing.scale_calm:
            self._enough = None
            self._ask(now, fewer, ready, f"{requests:.0f} requests, which fewer can take")

    def _missed(self, target: ScalingTarget, asked: Sequence[Reading], late: float) -> str:
        """Return how the target is missed, or ""."""
        waiting, before = sum(one.waiting for one in asked), self._waiting
        self._waiting = waiting
        if waiting and waiting >= _DRAINS * before - 1:
            return f"{waiting:.0f} requests are waiting"
        if late > MOST_LATE:
            return f"{late:.0%} of first tokens came after {target.ttft:g} s"
        cache = max(one.kv_cache_use for one in asked)
        return f"a KV cache is {cache:.0%} full" if cache > FULL_CACHE else ""

    def _would_do(self, fewer: int, asked: List[Reading]) -> bool:
        """Return whether fewer replicas would keep the target, by what has been too much so far."""
        requests = sum(one.running + one.waiting for one in asked)
        cache = sum(one.kv_cache_use for one in asked)
        return requests <= ROOM * self._most * fewer and cache <= ROOM * fewer

    def _ask(self, now: float, number: int, ready: Sequence[str], why: str) -> None:
        self._changed, self._short, self._number = now, None, number
        used = min(number, len(ready))
        if used != len(self._asked):
            self.event = f"uses {used} of {len(ready)} replicas: {why}"


class FirstTokens:
    """What the replicas' histograms say of the time to the first token."""

    def __init__(self) -> None:
        self._before: Dict[str, Mapping[float, float]] = {}
        self._late = self._total = 0.0  # Of those that are not judged yet
        self._verdict, self._judged = 0.0, float("-inf")

    def late(self, now: float, ttft: float, readings: Mapping[str, Reading]) -> float:
        """Return the part of the latest first tokens that came after `ttft` seconds, as far as the
        bounds of the buckets tell; 0 without a target, or if there were too few lately."""
        before, self._before = self._before, {}
        for name, reading in readings.items():
            self._before[name] = reading.first_tokens
            self._count(before.get(name) or reading.first_tokens, reading.first_tokens, ttft)
        if self._total >= _ENOUGH_TOKENS:
            self._verdict, self._judged = self._late / self._total, now
            self._late = self._total = 0.0
        return self._verdict if ttft and now - self._judged < _JUDGED else 0.0

    def _count(
        self, before: Mapping[float, float], now: Mapping[float, float], ttft: float
    ) -> None:
        if any(now.get(bound, 0.0) < count for bound, count in before.items()):
            return  # Another engine, which counts from 0
        new = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
        every = max(new.values(), default=0.0)
        in_time = min((count for bound, count in new.items() if bound >= ttft), default=every)
        self._total += every
        self._late += every - in_time
