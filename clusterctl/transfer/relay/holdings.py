"""All blobs known to this relay, and the threads that fetch them."""

import contextlib
import os
import threading
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from clusterctl.transfer.relay.fetching import Fetch, Say, Waits
from clusterctl.transfer.relay.parts import PartFile
from clusterctl.transfer.relay.roster import Roster
from clusterctl.transfer.relay.stored import Segment, Stored

SIDE_BY_SIDE = 4  # Segments that `want` fetches at a time


class Holdings:
    """Blobs by digest. `say` sends an event to the controller."""

    def __init__(self, roster: Roster, say: Say) -> None:
        self._roster, self._say = roster, say
        self._blobs: Dict[str, Stored] = {}
        self._parts: Dict[str, PartFile] = {}
        self._queue: List[Stored] = []
        self._workers = 0
        self._lock = threading.Lock()
        self.waits = Waits()

    def add(self, blob: Stored) -> None:
        """Add a blob, unless its digest is known already."""
        with self._lock:
            if blob.digest not in self._blobs:
                self._blobs[blob.digest] = blob
                self._parts[blob.digest] = PartFile(blob)

    def add_whole(self, digest: str, size: int, path: str) -> None:
        """Add a blob that is complete at `path`. Raises OSError if missing or of another size."""
        if os.path.getsize(path) != size:
            raise OSError("%s has not %d bytes" % (path, size))
        blob = Stored(digest, size, path, placed=True)
        blob.completed()
        self.add(blob)

    def find(self, digest: str) -> Optional[Stored]:
        with self._lock:
            return self._blobs.get(digest)

    def ask(self, blob: Stored, segment: Segment) -> None:
        """Start a fetch of the segment, unless it is here or a fetch of it runs."""
        if blob.claim(segment):
            self._start(lambda: self._fetch(blob, segment))

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
            self._start(self._work)

    def totals(self) -> Tuple[int, int]:
        """Bytes present, and bytes in total, of the blobs that were requested."""
        with self._lock:
            wanted = [blob for blob in self._blobs.values() if blob.wanted]
        return sum(blob.have for blob in wanted), sum(blob.size for blob in wanted)

    def remove_cached(self) -> None:
        """Remove all blobs that were not placed as files of a model."""
        with self._lock:
            blobs = [blob for blob in self._blobs.values() if not blob.placed]
        for blob in blobs:
            for path in (blob.path, blob.part, blob.journal):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.daemon = True
        thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                taken = self._take()
                if taken is None:
                    self._workers -= 1
                    return
            self._fetch(*taken)

    def _take(self) -> Optional[Tuple[Stored, Segment]]:
        for blob in list(self._queue):
            for segment in blob.segments:
                if blob.claim(segment):
                    return blob, segment
            self._queue.remove(blob)
        return None

    def _fetch(self, blob: Stored, segment: Segment) -> None:
        fetch = Fetch(blob, segment, self._parts[blob.digest], self._roster, self._say, self.waits)
        try:
            fetch.run()
        except OSError as error:
            blob.failed(str(error))
            self._say("failed", blob.digest, str(error))
        finally:
            self.waits.clear(fetch)
            blob.release(segment)
        if blob.complete:
            self._say("done", blob.digest, blob.path)
