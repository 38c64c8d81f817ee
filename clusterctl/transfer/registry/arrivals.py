"""Blobs on their way from a registry into the store, read while they arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from clusterctl.errors import ClusterctlError, StepFailed
from clusterctl.transfer.blob_store import BlobStore, WrongBytes
from clusterctl.transfer.content import CHUNK, Blob

AT_ONCE = 4  # Downloads at a time: one stream seldom fills a fast line, and registries count them

Fetch = Callable[[Blob, int], Iterator[bytes]]  # A blob's bytes from an offset on


class Arrival:
    """One blob that comes: how much of it is there."""

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self._changed = threading.Condition()
        self._count = 0
        self._ended = False
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        return self._error is not None

    def reached(self, count: int) -> None:
        with self._changed:
            self._count = count
            self._changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def beyond(self, offset: int) -> int:
        """How much is there, once that is more than `offset` or all. Raises what the download
        raised; it is bounded, and so is the wait for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > offset or self._ended)
            if self._error is not None:
                raise _as_ours(self._error)
            return self._count

    def whole(self) -> None:
        """Once it was found to be the blob's; raises what the download raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
            if self._error is not None:
                raise _as_ours(self._error)


class Arrivals:
    """Fetches what is asked for, once, at most AT_ONCE blobs at a time."""

    def __init__(self, store: BlobStore, fetch: Fetch) -> None:
        self._store, self._fetch = store, fetch
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._arrivals: dict[str, Arrival] = {}

    def start(self, blob: Blob) -> Arrival:
        """Begin, or begin again what failed; what is on its way already goes on."""
        with self._lock:
            found = self._arrivals.get(blob.digest)
            if found is None or found.failed:
                found = self._arrivals[blob.digest] = Arrival(blob)
                name = f"fetch-{blob.hex[:12]}"
                # A daemon: Ctrl-C does not wait for it, and what came stays for the next run.
                threading.Thread(target=self._bring, args=(found,), name=name, daemon=True).start()
            return found

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """The bytes, as they arrive; the last of them only when all were found to be the
        blob's."""
        if self._store.holds(blob):
            yield from self._store.open(blob, offset)
            return
        arrival = self.start(blob)
        there = arrival.beyond(offset)
        with self._file(blob) as file:
            file.seek(offset)
            while offset < blob.size:
                chunk = file.read(min(CHUNK, there - offset))
                if not chunk:
                    raise StepFailed(f"{blob.digest} was taken back: its source sent wrong bytes")
                offset += len(chunk)
                if offset == blob.size:
                    arrival.whole()
                yield chunk
                there = arrival.beyond(offset)

    def _bring(self, arrival: Arrival) -> None:
        blob = arrival.blob
        try:
            with self._free:
                self._store.fill(blob, lambda at: self._fetch(blob, at), arrival.reached)
        except BaseException as error:  # raised again in whoever reads
            arrival.end(error)
        else:
            arrival.reached(blob.size)
            arrival.end(None)

    def _file(self, blob: Blob) -> BinaryIO:
        """Whichever of its two names it has by now."""
        for path in (self._store.part(blob.digest), self._store.path(blob.digest)):
            try:
                return path.open("rb")
            except FileNotFoundError:
                continue
        raise StepFailed(f"{blob.digest} is gone from {self._store.directory}")


def _as_ours(error: BaseException) -> BaseException:
    """A new one for each reader: the same exception in two threads mixes their tracebacks."""
    if isinstance(error, WrongBytes):
        return WrongBytes(error.summary, hint=error.hint)
    if isinstance(error, ClusterctlError):
        return type(error)(error.summary, host=error.host, hint=error.hint, detail=error.detail)
    return error
