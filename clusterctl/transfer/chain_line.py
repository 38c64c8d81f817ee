"""What one relay asks of the source, over the one channel to it: first things first.

Engines ask for several layers at once and unpack them in order, each when it is whole. Were they
sent side by side, the base, which is the largest, would be whole last, and all unpacking would wait
for it. So whatever comes first among the blobs gets the channel, and the rest what it leaves.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from clusterctl.errors import ConnectionFailed
from clusterctl.transfer.chain_feed import Feed
from clusterctl.transfer.relay import frames

# Pieces read before the channel has room for them, of each stream: a source of several connections
# is then asked for all of them at once.
AHEAD = 4

# Seconds after which a stream gets one piece, whatever is before it. Whoever waits, relays and
# engines, sees that it goes on.
NEGLECTED = 2.0


IN_ORDER = 8  # Pieces between two such: over a slow link they all take long, and order counts most

OVERDUE = 15.0  # Seconds after which it gets one all the same


class Outlet(Protocol):
    """Where frames for a relay go."""

    def send(self, kind: bytes, stream: int, payload: bytes) -> None: ...

    def close(self) -> None: ...


class RelayGone(Exception):
    """Who asked does not listen any more."""


class _Stream:
    """A range that was asked for, and as much of it as waits for the channel."""

    def __init__(self, number: int, rank: tuple[int, int], lock: threading.Lock) -> None:
        self.number, self.rank = number, rank
        self.since = 0.0  # When the first piece in `ready` began to wait
        # Of its own, so that a piece that is sent wakes only who reads the next one.
        self.room_for_more = threading.Condition(lock)
        # Pieces, and how it ended: None when all was read, else why it was not.
        self.ready: deque[bytes | Exception | None] = deque()


class FeedLine:
    """One relay's streams of the source, until `close`."""

    def __init__(
        self, feed: Feed, outlet: Outlet, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._feed, self._outlet, self._clock = feed, outlet, clock
        self._streams: dict[int, _Stream] = {}
        self._lock = threading.Lock()
        self._something_ready = threading.Condition(self._lock)
        self._closed = False
        self._in_order = 0
        threading.Thread(target=self._send_all, name="feed", daemon=True).start()

    def take(self, kind: bytes, number: int, payload: bytes) -> None:
        """A frame of the relay: it wants a range, or no more of one."""
        if kind == frames.ENOUGH:
            self._drop(number)
            return
        digest, start, size = frames.parse(payload)[0]
        rank = self._feed.rank(digest, int(start))
        stream = _Stream(number, rank, self._lock)
        with self._lock:
            if self._closed:
                return
            self._streams[number] = stream
        work = (stream, digest, int(start), int(size))
        threading.Thread(target=self._read, args=work, name="source", daemon=True).start()

    def sign_of_life(self) -> None:
        """Tell the relay that we are here, however slow the source is. Raises RelayGone."""
        with self._lock:
            numbers = tuple(self._streams)
        for number in numbers:
            self._send(number, frames.ALIVE)

    def close(self) -> None:
        """Its streams end before their next piece."""
        with self._lock:
            self._closed = True
            for stream in self._streams.values():
                stream.room_for_more.notify()
            self._streams.clear()
            self._something_ready.notify()

    def _read(self, stream: _Stream, digest: str, start: int, size: int) -> None:
        try:
            for piece in self._feed.pieces(digest, start, size):
                if not self._put(stream, piece):
                    return
            self._put(stream, None)
        except Exception as error:  # nobody else would hear of it, and the relay would wait
            self._put(stream, error)

    def _put(self, stream: _Stream, item: bytes | Exception | None) -> bool:
        """False when nobody waits for it any more."""
        with self._lock:
            stream.room_for_more.wait_for(
                lambda: len(stream.ready) < AHEAD or stream.number not in self._streams
            )
            stream.since = stream.since if stream.ready else self._clock()
            stream.ready.append(item)
            self._something_ready.notify()
            return stream.number in self._streams

    def _drop(self, number: int) -> None:
        with self._lock:
            stream = self._streams.pop(number, None)
            if stream is not None:
                stream.room_for_more.notify()

    def _send_all(self) -> None:
        try:
            with contextlib.suppress(RelayGone):
                while (found := self._next()) is not None:
                    self._deliver(*found)
        finally:
            meant = self._closed
            self.close()
            if not meant:  # who listens to the relay finds it gone, and starts it again
                self._outlet.close()

    def _next(self) -> tuple[int, bytes | Exception | None] | None:
        """What is to be sent now, and in which stream; None when the line was closed."""
        with self._lock:
            self._something_ready.wait_for(lambda: self._closed or self._chosen() is not None)
            stream = self._chosen()
            if stream is None:
                return None
            self._in_order = 0 if self._is_neglected(stream) else self._in_order + 1
            item = stream.ready.popleft()
            stream.since = self._clock()
            if not isinstance(item, bytes):
                del self._streams[stream.number]
            stream.room_for_more.notify()
            return stream.number, item

    def _deliver(self, number: int, item: bytes | Exception | None) -> None:
        if item is None:
            self._send(number, frames.END)
        elif isinstance(item, Exception):
            self._send(number, frames.FAILED, self._feed.note_failure(item).encode())
        else:
            self._feed.await_turn(len(item))
            # Counted first: a host that has its last byte may be done before this thread goes on.
            self._feed.passed(len(item))
            self._send(number, frames.DATA, item)

    def _chosen(self) -> _Stream | None:
        ready = [stream for stream in self._streams.values() if stream.ready]
        if not ready:
            return None
        longest = min(ready, key=lambda stream: stream.since)
        return longest if self._is_neglected(longest) else min(ready, key=lambda each: each.rank)

    def _is_neglected(self, stream: _Stream) -> bool:
        waited = self._clock() - stream.since
        return waited > (NEGLECTED if self._in_order >= IN_ORDER else OVERDUE)

    def _send(self, number: int, kind: bytes, payload: bytes = b"") -> None:
        try:
            self._outlet.send(kind, number, payload)
        except ConnectionFailed as error:
            raise RelayGone from error
