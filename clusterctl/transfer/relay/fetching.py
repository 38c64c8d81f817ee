"""The relay's blobs, and the threads that fetch them and retry after failures."""

import contextlib
import os
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from clusterctl.transfer.reaching import open_file
from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.stored import PartFile, Segment, Stored
from clusterctl.transfer.relay.upstream import (
    SOURCE,
    Upstream,
    UpstreamFailed,
    Upstreams,
    WrongSoFar,
)

TICK = 1.0  # Seconds between checks of a silent stream

# Stall times without a byte after which a stream is closed, even if its upstream is alive
PATIENCE = 4

PAUSE = 1.0  # Seconds before all upstreams are tried again

SIDE_BY_SIDE = 4  # Segments that `want` fetches at a time

Say = Callable[..., None]


class UpstreamSilent(Exception):
    """The upstream sent nothing for too long."""


class CloserUpstream(Exception):
    """A nearer upstream is available: a host instead of the source."""


class Fetch:
    """Fetches one segment until it is verified, or until the disk fails."""

    def __init__(
        self,
        blob: Stored,
        segment: Segment,
        part: PartFile,
        upstreams: Upstreams,
        say: Say,
        waits: "Dict[Fetch, str]",
    ) -> None:
        self._blob, self._segment, self._part = blob, segment, part
        self._upstreams, self._say, self._waits = upstreams, say, waits
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
        self._waits.pop(self, None)

    def _is_verified(self) -> bool:
        if self._segment.have < self._segment.size:
            return False
        if self._hash.hexdigest() != self._segment.digest:
            self._blame()
            self._start_over()
            return False
        last = self._blob.verified(self._segment)
        self._part.note(self._segment)
        if last:
            self._part.finish()
            self._say("done", self._blob.digest, self._blob.path)
        return True

    def _blame(self) -> None:
        """Report the sender of wrong bytes, and exclude it if it sent all of them. Bytes from an
        earlier run are suspected first. If there were several senders, none is excluded: the next
        try may show which one was wrong."""
        if self._resumed:
            self._say("wrong", "an earlier run", self._blob.digest)
            return
        self._say("wrong", " or ".join(self._contributors), self._blob.digest)
        if len(self._contributors) == 1:
            self._blamed.update(self._contributors)
        if self._blamed >= {upstream.name for upstream in self._upstreams.all()}:
            self._blamed.clear()

    def _start_over(self) -> None:
        self._blob.drop(self._segment)
        self._part.forget(self._segment, self._wait)
        self._contributors, self._resumed = [], False
        self._hash = self._part.hash_of(self._segment)

    def _choose(self) -> Optional[Upstream]:
        found = self._upstreams.choose(self._tried | self._blamed)
        if found is None:
            self._tried.clear()
            self._wait(self._reason or "an upstream")
            time.sleep(PAUSE)
        elif found.name == SOURCE and self._tried - {SOURCE} and self._upstreams.is_first_detour():
            self._say("detour", self._reason, self._blob.digest)
        return found

    def _take(self, upstream: Upstream) -> None:
        """Receive until the segment is complete or the upstream fails."""
        before = self._segment.have
        upstream.stats.began()
        try:
            self._receive(upstream)
        except WrongSoFar:
            self._start_over()
        except CloserUpstream:
            self._tried.clear()
        except (UpstreamSilent, UpstreamFailed) as reason:
            if self._segment.have > before:
                self._tried.clear()
            self._tried.add(upstream.name)
            self._upstreams.failed(upstream, isinstance(reason, UpstreamFailed) and reason.for_now)
            self._wait("%s: %s" % (upstream.name, reason))
        finally:
            upstream.stats.ended()

    def _receive(self, upstream: Upstream) -> None:
        segment, stats = self._segment, upstream.stats
        start, size = segment.start + segment.have, segment.size - segment.have
        joined = last = time.monotonic()
        for piece in upstream.pieces(self._blob.digest, start, size, TICK):
            if len(piece):
                self._keep(upstream, piece)
                last = time.monotonic()
            if self._upstreams.has_better(upstream, joined):
                raise CloserUpstream
            if len(piece):
                continue
            if piece is wire.STILL_THERE:
                stats.heard()
            seconds = time.monotonic() - last
            if min(seconds, stats.standstill()) >= 3:
                self._wait("%s, silent for %d s" % (upstream.name, seconds))
            stall = self._upstreams.stall
            if stats.silence() >= self._upstreams.patience(upstream) or seconds >= PATIENCE * stall:
                raise UpstreamSilent("nothing came for %d s" % seconds)

    def _keep(self, upstream: Upstream, piece: Any) -> None:
        upstream.stats.heard(len(piece))
        if upstream.name not in self._contributors:
            self._contributors.append(upstream.name)
        if self._waiting:
            self._waiting = False
            self._waits.pop(self, None)
            self._upstreams.works(upstream)
        self._hash.update(piece)
        self._part.write(self._segment.start + self._segment.have, memoryview(piece))
        self._blob.advance(self._segment, len(piece))
        self._part.note(self._segment)

    def _wait(self, reason: str) -> None:
        self._waiting = True
        self._reason = reason
        self._waits[self] = reason


class Holdings:
    """Blobs by digest. `say` sends an event to the controller."""

    def __init__(self, upstreams: Upstreams, say: Say) -> None:
        self._upstreams, self._say = upstreams, say
        self._blobs: Dict[str, Stored] = {}
        self._parts: Dict[str, PartFile] = {}
        self._queue: List[Stored] = []
        self._workers = 0
        self._lock = threading.Lock()
        # What each fetch waits for, in words for a user; threads change it, each for its fetch.
        self._waits: Dict[Fetch, str] = {}

    def add(self, blob: Stored) -> None:
        """Add a blob, unless its digest is known already."""
        with self._lock:
            if blob.digest not in self._blobs:
                self._blobs[blob.digest] = blob
                self._parts[blob.digest] = PartFile(blob)

    def add_whole(self, digest: str, size: int, path: str) -> None:
        """Add a blob that is complete at `path`. Raises OSError if missing or of another size."""
        descriptor = open_file(path)
        found = os.fstat(descriptor).st_size
        os.close(descriptor)
        if found != size:
            raise OSError("%s has not %d bytes" % (path, size))
        blob = Stored(digest, size, path, placed=True)
        blob.completed()
        self.add(blob)

    def find(self, digest: str) -> Optional[Stored]:
        with self._lock:
            return self._blobs.get(digest)

    def ask(self, blob: Stored, segment: Segment) -> None:
        """Start fetching the segment, unless it is present or already being fetched."""
        if blob.claim(segment):
            threading.Thread(target=self._fetch, args=(blob, segment), daemon=True).start()

    def want(self, digests: Iterable[str]) -> None:
        """Fetch these blobs in this order, SIDE_BY_SIDE segments at a time."""
        with self._lock:
            for digest in digests:
                blob = self._blobs[digest]
                blob.wanted = True
                if blob.complete:
                    self._say("done", digest, blob.path)
                elif blob not in self._queue:
                    self._queue.append(blob)
            missing = SIDE_BY_SIDE - self._workers
            self._workers += missing
        for _ in range(missing):
            threading.Thread(target=self._work, daemon=True).start()

    def totals(self) -> Tuple[int, int]:
        """Bytes present and total bytes of the requested blobs."""
        with self._lock:
            wanted = [blob for blob in self._blobs.values() if blob.wanted]
        return sum(blob.have for blob in wanted), sum(blob.size for blob in wanted)

    def waiting(self) -> str:
        """Return why a fetch is waiting; "" if none is."""
        return next(iter(list(self._waits.values())), "")

    def remove_cached(self) -> None:
        """Remove all blobs except those placed as files of a model."""
        with self._lock:
            blobs = [blob for blob in self._blobs.values() if not blob.placed]
        for blob in blobs:
            for path in (blob.path, blob.part, blob.journal):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _work(self) -> None:
        while True:
            with self._lock:
                taken = self._next()
                if taken is None:
                    self._workers -= 1
                    return
            self._fetch(*taken)

    def _next(self) -> Optional[Tuple[Stored, Segment]]:
        """Claim a segment of the first blob in the queue that still has one to fetch."""
        while self._queue:
            for segment in self._queue[0].segments:
                if self._queue[0].claim(segment):
                    return self._queue[0], segment
            self._queue.pop(0)
        return None

    def _fetch(self, blob: Stored, segment: Segment) -> None:
        fetch = Fetch(
            blob, segment, self._parts[blob.digest], self._upstreams, self._say, self._waits
        )
        try:
            fetch.run()
        except OSError as error:
            blob.failed(str(error))
            self._say("failed", blob.digest, str(error))
        finally:
            self._waits.pop(fetch, None)
            blob.release(segment)
        if blob.complete:
            self._say("done", blob.digest, blob.path)
