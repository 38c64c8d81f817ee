"""How many replicas of a service are asked: as few as keep its targets. Pure.

The gateway sends requests to the first ones in equal parts. The others are spare: they are asked
where the first ones fail, or once more are needed. A replica that is not asked falls asleep after
its idle time, and its next request wakes it. So no gateway has to order anything: each decides
for itself, by what the replicas' metrics say, which is the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence

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
"""A queue that has shrunk to this part of itself within `scale_every` goes away by itself."""


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
        self._asked = 0
        self._looked = self._changed = float("-inf")
        self._short: Optional[float] = None  # Since when the target is missed
        self._enough: Optional[float] = None  # Since when one replica less would do
        self._most = float("inf")  # Requests of a replica with which the target was missed
        self._waiting = 0.0
        self._tokens: Dict[str, Dict[float, float]] = {}
        self.event = ""  # What changed with the last call, and why

    def asked(
        self,
        now: float,
        target: ScalingTarget,
        ready: Sequence[str],
        readings: Mapping[str, Reading],
    ) -> FrozenSet[str]:
        """Return which of the servers that are `ready`, in their order, are needed now."""
        self.event = ""
        least = max(target.least, 1)
        self._asked = max(least, min(self._asked, len(ready)))
        if now - self._looked >= self._timing.scale_every:
            self._looked = now
            self._follow(now, target, least, ready, readings)
        return frozenset(ready[: self._asked])

    def _follow(
        self,
        now: float,
        target: ScalingTarget,
        least: int,
        ready: Sequence[str],
        readings: Mapping[str, Reading],
    ) -> None:
        asked = [readings[name] for name in ready[: self._asked] if name in readings]
        if not asked:
            return
        why = self._missed(target, asked, self._late(target.ttft, readings))
        each = sum(one.running + one.waiting for one in asked) / len(asked)
        if why:
            self._enough = None
            self._short = now if self._short is None else self._short
            settled = now - self._changed >= self._timing.scale_settle
            lasts = now - self._short >= self._timing.scale_patience
            if settled and lasts:
                self._most = each
                self._ask(now, min(2 * self._asked, len(ready)), ready, why)
            return

        self._short = None
        self._most = max(self._most, each)
        fewer = self._asked - 1
        if fewer < least or not self._would_do(fewer, asked):
            self._enough = None
            return
        self._enough = now if self._enough is None else self._enough
        if now - self._enough >= self._timing.scale_calm:
            self._enough = None
            self._ask(now, fewer, ready, f"{each:.1f} requests each")

    def _missed(self, target: ScalingTarget, asked: Sequence[Reading], late: float) -> str:
        """Return how the target is missed, or ""."""
        waiting, before = sum(one.waiting for one in asked), self._waiting
        self._waiting = waiting
        if waiting and waiting >= _DRAINS * before:
            return f"{waiting:.0f} requests wait"
        if late > MOST_LATE:
            return f"{late:.0%} of first tokens came after {target.ttft:g} s"
        cache = max(one.kv_cache_use for one in asked)
        return f"a KV cache is {cache:.0%} full" if cache > FULL_CACHE else ""

    def _late(self, ttft: float, readings: Mapping[str, Reading]) -> float:
        """Return the part of the first tokens since the last look that came after the target, as
        far as the bounds of the buckets tell."""
        late = total = 0.0
        for name, reading in readings.items():
            now = reading.first_tokens
            before = self._tokens.get(name, now)
            if any(now.get(bound, 0.0) < count for bound, count in before.items()):
                before = now  # Another engine, which counts from 0
            new = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
            every = max(new.values(), default=0.0)
            in_time = min((n for bound, n in new.items() if bound >= ttft), default=every)
            total, late = total + every, late + every - in_time
            self._tokens[name] = now
        return late / total if ttft and total else 0.0

    def _would_do(self, fewer: int, asked: List[Reading]) -> bool:
        """Return whether fewer replicas would keep the target, by what has been too much so far."""
        requests = sum(one.running + one.waiting for one in asked)
        cache = sum(one.kv_cache_use for one in asked)
        return requests <= ROOM * self._most * fewer and cache <= ROOM * fewer

    def _ask(self, now: float, number: int, ready: Sequence[str], why: str) -> None:
        self._changed, self._short = now, None
        if number != self._asked:
            self._asked = number
            self.event = f"asks {number} of {len(ready)} replicas: {why}"
