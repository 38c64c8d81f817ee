"""The source's side of a chain: what relays ask of it through their SSH session."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from clusterctl.distribution.content import Blob, BlobSource
from clusterctl.distribution.relay import frames
from clusterctl.errors import ClusterctlError, ConnectionFailed, StepFailed

PIECE = 256 * 1024
"""Bytes sent at a time: what a relay must get within a stall time, on the slowest link."""

LIMITED_PIECE = 32 * 1024


class Outlet(Protocol):
    """Where frames for a relay go."""

    def send(self, kind: bytes, stream: int, payload: bytes) -> None: ...


class Throttle:
    """Lets `rate` bytes a second pass, all streams together; None lets all pass."""

    def __init__(
        self,
        rate: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._free_at = clock()
        self._lock = threading.Lock()

    @property
    def piece(self) -> int:
        """Bytes to pass at a time."""
        return PIECE if self._rate is None else LIMITED_PIECE

    def take(self, count: int) -> None:
        """Returns when `count` bytes may go."""
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._free_at)
            self._free_at = start + count / self._rate
        if start > now:
            self._sleep(start - now)


class RelayGone(Exception):
    """Who asked does not listen any more."""


class Feed:
    """The source, for all relays of a chain."""

    def __init__(
        self, source: BlobSource | None, blobs: Mapping[str, Blob], throttle: Throttle
    ) -> None:
        self._source, self._throttle = source, throttle
        self._blobs = {blob.hex: blob for blob in blobs.values()}
        self._lock = threading.Lock()
        self.sent = 0
        """Bytes, to all relays together."""
        self.failures = 0
        """Attempts in a row in which the source gave nothing."""
        self.problem: ClusterctlError | None = None
        """Why, for the latest of them."""

    def stream(self, line: FeedLine, number: int, digest: str, start: int, size: int) -> None:
        """Send a range to who asked for it."""
        try:
            for piece in self._pieces(digest, start, size):
                if number not in line.streams:
                    return
                self._throttle.take(len(piece))
                line.send(frames.DATA, number, piece)
                self._passed(len(piece))
            line.send(frames.END, number)
        except ClusterctlError as error:
            self._failed(error)
            line.send(frames.FAILED, number, str(error).encode())

    def _pieces(self, digest: str, start: int, size: int) -> Iterator[bytes]:
        if self._source is None:
            raise StepFailed("there is no source")
        step = self._throttle.piece
        for chunk in self._source.open(self._blobs[digest], start):
            wanted = chunk[:size]
            for begin in range(0, len(wanted), step):
                yield wanted[begin : begin + step]
            size -= len(wanted)
            if size <= 0:
                return

    def _passed(self, count: int) -> None:
        with self._lock:
            self.sent += count
            self.failures, self.problem = 0, None

    def _failed(self, error: ClusterctlError) -> None:
        with self._lock:
            self.failures += 1
            self.problem = error


class FeedLine:
    """One relay's streams of the source."""

    def __init__(self, feed: Feed, outlet: Outlet) -> None:
        self._feed, self._outlet = feed, outlet
        self.streams: set[int] = set()

    def take(self, kind: bytes, number: int, payload: bytes) -> None:
        """A frame of the relay: it wants a range, or no more of one."""
        if kind == frames.ENOUGH:
            self.streams.discard(number)
            return
        digest, start, size = frames.parse(payload)[0]
        self.streams.add(number)
        work = (number, digest, int(start), int(size))
        threading.Thread(target=self._serve, args=work, name="feed", daemon=True).start()

    def sign_of_life(self) -> None:
        """Tell the relay that we are here, however slow the source is."""
        for number in tuple(self.streams):
            self.send(frames.ALIVE, number)

    def send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        """Raises RelayGone."""
        try:
            self._outlet.send(kind, number, payload)
        except ConnectionFailed as error:
            raise RelayGone from error

    def close(self) -> None:
        """Its streams end before their next piece."""
        self.streams.clear()

    def _serve(self, number: int, digest: str, start: int, size: int) -> None:
        with contextlib.suppress(RelayGone):
            self._feed.stream(self, number, digest, start, size)
        self.streams.discard(number)
