"""Fetch the bytes of one segment from its upstreams, through any number of failures."""

import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set

from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.parts import PartFile
from clusterctl.transfer.relay.roster import Roster
from clusterctl.transfer.relay.stored import Segment, Stored
from clusterctl.transfer.relay.upstream import SOURCE, Upstream, UpstreamFailed, WrongSoFar

TICK = 1.0  # Seconds between checks of a silent stream

# Stall times without a byte after which a stream is closed, even if its upstream is alive
PATIENCE = 4

PAUSE = 1.0  # Seconds before all upstreams are tried again

Say = Callable[..., None]


class Silent(Exception):
    """The upstream sent nothing for too long."""


class Nearer(Exception):
    """A better upstream came back: a host, which costs the source no bytes."""


class Fetch:
    """Fetches one segment until it is verified, or until the disk fails."""

    def __init__(
        self,
        blob: Stored,
        segment: Segment,
        part: PartFile,
        roster: Roster,
        say: Say,
        waits: "Waits",
    ) -> None:
        self._blob, self._segment, self._part = blob, segment, part
        self._roster, self._say, self._waits = roster, say, waits
        self._tried: Set[str] = set()
        self._blamed: Set[str] = set()
        self._contributors: List[str] = []
        self._resumed = False
        self._waiting = False
        self._reason = ""
        self._hash: Any = None

    def run(self) -> None:
        """Fetch and verify the segment. Raises OSError when the disk refuses."""
        self._part.open(self._wait)
        if self._blob.complete or self._segment.done:
            return
        self._resumed = self._segment.have > 0
        self._hash = self._part.hash_of(self._segment)
        while not self._is_verified():
            upstream = self._choose()
            if upstream is not None:
                self._take(upstream)
        self._waits.clear(self)

    def _is_verified(self) -> bool:
        if self._segment.have < self._segment.size:
            return False
        if self._hash.hexdigest() == self._segment.digest:
            self._finish()
            return True
        self._blame()
        self._start_over()
        return False

    def _blame(self) -> None:
        """Report who sent wrong bytes, and avoid a sole sender. Bytes that an earlier run left are
        suspected first; of several senders, the next try may show which one."""
        if self._resumed:
            self._say("wrong", "an earlier run", self._blob.digest)
            return
        self._say("wrong", " or ".join(self._contributors), self._blob.digest)
        if len(self._contributors) == 1:
            self._blamed.update(self._contributors)
        if self._blamed >= {upstream.name for upstream in self._roster.all()}:
            self._blamed.clear()

    def _finish(self) -> None:
        last = self._blob.verified(self._segment)
        self._part.note(self._segment)
        if last:
            self._part.finish()
            self._say("done", self._blob.digest, self._blob.path)

    def _start_over(self) -> None:
        self._blob.drop(self._segment)
        self._part.forget(self._segment, self._wait)
        self._contributors, self._resumed = [], False
        self._hash = self._part.hash_of(self._segment)

    def _choose(self) -> Optional[Upstream]:
        found = self._roster.choose(self._tried | self._blamed)
        if found is None:
            self._tried.clear()
            self._wait(self._reason or "an upstream")
            time.sleep(PAUSE)
        elif found.name == SOURCE and self._tried - {SOURCE} and self._roster.is_first_detour():
            self._say("detour", self._reason, self._blob.digest)
        return found

    def _take(self, upstream: Upstream) -> None:
        """Receive until the segment is complete or the upstream fails."""
        before = self._segment.have
        upstream.standing.began()
        try:
            self._receive(upstream)
        except WrongSoFar:
            self._start_over()
        except Nearer:
            self._tried.clear()
        except Silent as reason:
            self._leave(upstream, str(reason), before, for_now=False)
        except UpstreamFailed as reason:
            self._leave(upstream, str(reason), before, for_now=reason.for_now)
        finally:
            upstream.standing.ended()

    def _leave(self, upstream: Upstream, reason: str, before: int, *, for_now: bool) -> None:
        if self._segment.have > before:
            self._tried.clear()
        self._tried.add(upstream.name)
        self._roster.failed(upstream, for_now)
        self._wait("%s: %s" % (upstream.name, reason))

    def _receive(self, upstream: Upstream) -> None:
        segment = self._segment
        start, size = segment.start + segment.have, segment.size - segment.have
        joined = last = time.monotonic()
        for piece in upstream.pieces(self._blob.digest, start, size, TICK):
            if len(piece):
                self._keep(upstream, piece)
                last = time.monotonic()
                if self._roster.has_better(upstream, joined):
                    raise Nearer
                continue
            if piece is wire.STILL_THERE:
                upstream.standing.heard()
            self._judge(upstream, time.monotonic() - last)

    def _keep(self, upstream: Upstream, piece: Any) -> None:
        upstream.standing.heard(len(piece))
        if upstream.name not in self._contributors:
            self._contributors.append(upstream.name)
        if self._waiting:
            self._waiting = False
            self._waits.clear(self)
            self._roster.works(upstream)
        self._hash.update(piece)
        self._part.write(self._segment.start + self._segment.have, memoryview(piece))
        self._blob.advance(self._segment, len(piece))
        self._part.note(self._segment)

    def _judge(self, upstream: Upstream, seconds: float) -> None:
        """Raise Silent if the upstream is silent for too long; `seconds`: since its last byte."""
        if min(seconds, upstream.standing.standstill()) >= 3:
            self._wait("%s, silent for %d s" % (upstream.name, seconds))
        stall = self._roster.stall
        if upstream.standing.silence() >= stall or seconds >= PATIENCE * stall:
            raise Silent("nothing came for %d s" % seconds)

    def _wait(self, reason: str) -> None:
        self._waiting = True
        self._reason = reason
        self._waits.note(self, reason)


class Waits:
    """What each fetch waits for, in words for a user."""

    def __init__(self) -> None:
        self._reasons: Dict[Fetch, str] = {}
        self._lock = threading.Lock()

    def note(self, fetch: Fetch, reason: str) -> None:
        with self._lock:
            self._reasons[fetch] = reason

    def clear(self, fetch: Fetch) -> None:
        with self._lock:
            self._reasons.pop(fetch, None)

    def text(self) -> str:
        """One of the reasons; "" when no fetch waits."""
        with self._lock:
            return next(iter(self._reasons.values()), "")
