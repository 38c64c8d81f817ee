"""Choose an upstream: the nearest host before this one in the chain first, the source last."""

import threading
import time
from typing import Callable, Collection, Dict, List, Optional

from clusterctl.transfer.relay.upstream import SOURCE, Upstream

REST = 1.0
# Seconds that a failed upstream is not used: REST at first, LONG_REST once it has failed for
# longer than a stall time
LONG_REST = 30.0


class Roster:
    """The upstreams of this relay. `stall`: seconds of silence after which one counts as gone."""

    def __init__(self, stall: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.stall = stall
        self._clock = clock
        self._upstreams: List[Upstream] = []
        self._since: Dict[str, float] = {}
        self._failed_at: Dict[str, float] = {}
        self._lock = threading.Lock()
        self._told_of_detour = False

    def set(self, upstreams: List[Upstream]) -> None:
        """Set the upstreams, preferred first. An object that was there before keeps its state."""
        with self._lock:
            before, self._upstreams = self._upstreams, upstreams
            for upstream in upstreams:
                if upstream not in before:
                    self._since[upstream.name] = self._clock()
                    self._failed_at.pop(upstream.name, None)

    def all(self) -> List[Upstream]:
        with self._lock:
            return list(self._upstreams)

    def choose(self, without: Collection[str]) -> Optional[Upstream]:
        """Return the first upstream that is not in `without` nor resting. None: wait, then retry.

        The source is used in place of a host only after that host has been gone for a stall time: a
        killed relay is back sooner, and bytes that leave the source twice cost more than the wait.
        """
        with self._lock:
            now = self._clock()
            gone = [
                self._failed_at.get(each.name) for each in self._upstreams if each.name != SOURCE
            ]
            for upstream in self._upstreams:
                if upstream.name == SOURCE and any(
                    at is not None and now - at < self.stall for at in gone
                ):
                    return None
                if upstream.name not in without and upstream.standing.resting_until <= now:
                    return upstream
            return None

    def failed(self, upstream: Upstream, for_now: bool) -> None:
        """Let a failed upstream rest. `for_now`: it broke a moment ago and may be back soon."""
        with self._lock:
            now = self._clock()
            if for_now:
                self._failed_at.setdefault(upstream.name, now)
            long_gone = now - self._failed_at.get(upstream.name, now - self.stall) >= self.stall
            if upstream.name != SOURCE:
                upstream.standing.resting_until = now + (LONG_REST if long_gone else REST)

    def works(self, upstream: Upstream) -> None:
        """Forget earlier failures of `upstream`: it delivered bytes."""
        with self._lock:
            self._failed_at.pop(upstream.name, None)

    def is_first_detour(self) -> bool:
        """Return True on the first call only: users need one message."""
        with self._lock:
            first, self._told_of_detour = not self._told_of_detour, True
            return first

    def has_better(self, upstream: Upstream, joined: float) -> bool:
        """Whether an upstream preferred to `upstream` was added after time `joined`."""
        with self._lock:
            for other in self._upstreams:
                if other is upstream:
                    return False
                if self._since.get(other.name, 0.0) > joined:
                    return True
            return False
