"""Sends ranges of the source's blobs to one relay over one channel, in order.

Engines request several layers at once and unpack them in order, each when it is complete. Sent side
by side, the base layer, which is the largest, would finish last, and all unpacking would wait for
it. So the first blob in the list gets the channel, and the others share what it leaves.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from clusterctl.errors import ClusterctlError, ConnectionFailed, StepFailed
from clusterctl.transfer.content import Blob, BlobSource
from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.upstream import HUB, SOURCE

# Bytes sent at a time: even the slowest link must deliver them within a relay's stall time.
PIECE = 256 * 1024
LIMITED_PIECE = 32 * 1024  # The same under a rate limit, for an even rate

# A source has failed after TRIES failures without a byte between, over TRYING seconds or more.
TRIES = 3
TRYING = 5.0

# Mismatches of one digest: the second one was not caused by the network.
MAX_WRONG = 2

# Pieces read ahead of the channel for each stream, so that a source with several connections is
# read over all of them at once.
AHEAD = 4

# Seconds after which a waiting stream gets one piece out of order, so that relays and engines see
# progress. Over a slow link every piece takes long, and order counts most: there this happens at
# most once in IN_ORDER pieces, unless a stream has waited OVERDUE seconds.
NEGLECTED = 2.0
IN_ORDER = 8
OVERDUE = 15.0


class Throttle:
    """Limits all streams together to `rate` bytes per second; None: no limit."""

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
        """Bytes to send at a time."""
        return PIECE if self._rate is None else LIMITED_PIECE

    def take(self, count: int) -> None:
        """Wait until `count` bytes may be sent."""
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._free_at)
            self._free_at = start + count / self._rate
        if start > now:
            self._sleep(start - now)


class Packed(bytes):
    """A piece that is sent to the relay compressed."""


class SharedSource:
    """The source that all relays of a chain share: its rate limit, failures and bytes sent.

    `packed`: digests of the blobs to compress before they leave this machine, at level 1 and piece
    by piece: a core compresses some 85 MB/s, and relays pass on uncompressed bytes.
    """

    def __init__(
        self,
        source: BlobSource | None,
        blobs: Mapping[str, Blob],
        throttle: Throttle,
        clock: Callable[[], float] = time.monotonic,
        packed: Collection[str] = (),
    ) -> None:
        self._source, self._throttle = source, throttle
        self._packed = {digest.removeprefix("sha256:") for digest in packed}
        self._blobs = {blob.hex: blob for blob in blobs.values()}
        self._ranks = {digest: place for place, digest in enumerate(self._blobs)}
        self._lock = threading.Lock()
        self._clock = clock
        self._failing: tuple[float, int] | None = None  # Time of the first failure, and count
        self._failure: ClusterctlError | None = None
        self._wrong: Counter[str] = Counter()
        self.sent = 0  # Bytes, to all relays together

    @property
    def problem(self) -> ClusterctlError | None:
        """Why the source cannot deliver: it failed several times in a row without a byte, or sent
        wrong bytes for a digest. None while it works."""
        with self._lock:
            for digest, times in self._wrong.items():
                if times >= MAX_WRONG:
                    return StepFailed(
                        f"the source sends bytes that do not match sha256:{digest[:12]}",
                        hint="the file is damaged, or changed while it was sent: get it again",
                    )
            if self._failing is None:
                return None
            since, times = self._failing
            final = times >= TRIES and self._clock() - since >= TRYING
            return self._failure if final else None

    def report_wrong(self, name: str, digest: str) -> None:
        """Count wrong bytes for `digest` if their sender, `name`, is the source or the hub."""
        if name in (SOURCE, HUB):
            with self._lock:
                self._wrong[digest] += 1

    def rank(self, digest: str, start: int) -> tuple[int, int]:
        """Return the sort key of a range: lower ones are sent first."""
        return self._ranks.get(digest, len(self._ranks)), start

    def pieces(self, digest: str, start: int, size: int) -> Iterator[bytes]:
        """Yield a range of a blob. Raises what the source raises; pass that to `note_failure`."""
        if self._source is None:
            raise StepFailed("there is no source")
        packed = digest in self._packed
        step = PIECE if packed else self._throttle.piece
        for chunk in self._source.open(self._blobs[digest], start):
            wanted = chunk[:size]
            for begin in range(0, len(wanted), step):
                piece = wanted[begin : begin + step]
                yield Packed(zlib.compress(piece, 1)) if packed else piece
            size -= len(wanted)
            if size <= 0:
                return
        if size:
            raise StepFailed(
                f"the source ends {size} bytes before the end of sha256:{digest[:12]}",
                hint="the file was truncated, or changed while it was sent: download it again",
            )

    def await_turn(self, count: int) -> None:
        """Wait until the rate limit lets `count` bytes be sent, and count them as sent."""
        self._throttle.take(count)
        with self._lock:
            self.sent += count
            self._failing = self._failure = None

    def note_failure(self, error: Exception) -> str:
        """Record that a range failed with `error`; return its text for the relay."""
        if not isinstance(error, ClusterctlError):
            error = StepFailed(
                f"the source cannot be read: {error}",
                hint="run the same command again: it resumes where it stopped",
                detail=repr(error),
            )
        with self._lock:
            since, times = self._failing or (self._clock(), 0)
            self._failing, self._failure = (since, times + 1), error
        return str(error)


class Outlet(Protocol):
    """Destination of frames for a relay."""

    def send(self, kind: bytes, stream: int, payload: bytes) -> None:
        """Send a frame. Raises ConnectionFailed if the relay is gone."""

    def close(self) -> None: ...


class _Range:
    """A range that a relay requested, and the pieces read ahead for it."""

    def __init__(self, number: int, rank: tuple[int, int], lock: threading.Lock) -> None:
        self.number, self.rank = number, rank
        self.since = 0.0  # When the first piece in `ready` began to wait
        # One per range, so that a sent piece wakes only the thread that reads the next one.
        self.room_for_more = threading.Condition(lock)
        # Pieces, then the end: None after the last piece, or the exception that stopped the read.
        self.ready: deque[bytes | Exception | None] = deque()


class SourceMultiplexer:
    """Sends one relay the ranges that it requests, until `close`."""

    def __init__(
        self, source: SharedSource, outlet: Outlet, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._outlet, self._clock = source, outlet, clock
        self._ranges: dict[int, _Range] = {}
        self._lock = threading.Lock()
        self._something_ready = threading.Condition(self._lock)
        self._closed = False
        self._in_order = 0  # Pieces since the last one that was sent out of order
        threading.Thread(target=self._send_all, name="multiplexer", daemon=True).start()

    def take(self, kind: bytes, number: int, payload: bytes) -> None:
        """Handle a frame from the relay, which requests or cancels a range."""
        if kind == wire.ENOUGH:
            with self._lock:
                dropped = self._ranges.pop(number, None)
                if dropped is not None:
                    dropped.room_for_more.notify()
            return
        digest, start, size = wire.parse(payload)[0]
        wanted = _Range(number, self._source.rank(digest, int(start)), self._lock)
        with self._lock:
            if self._closed:
                return
            self._ranges[number] = wanted

        def read() -> None:
            try:
                for piece in self._source.pieces(digest, int(start), int(size)):
                    if not self._put(wanted, piece):
                        return
                self._put(wanted, None)
            except Exception as error:  # else the thread would end unnoticed, and the relay wait
                self._put(wanted, error)

        threading.Thread(target=read, name="source", daemon=True).start()

    def keep_alive(self) -> None:
        """Send ALIVE for every open range, however slow the source is. Raises ConnectionFailed."""
        with self._lock:
            numbers = tuple(self._ranges)
        for number in numbers:
            self._outlet.send(wire.ALIVE, number, b"")

    def close(self) -> None:
        """Stop all ranges before their next piece."""
        with self._lock:
            self._closed = True
            for each in self._ranges.values():
                each.room_for_more.notify()
            self._ranges.clear()
            self._something_ready.notify()

    def _put(self, wanted: _Range, item: bytes | Exception | None) -> bool:
        """Queue a piece or the end of a range; return False if the relay has cancelled it."""
        with self._lock:
            wanted.room_for_more.wait_for(
                lambda: len(wanted.ready) < AHEAD or wanted.number not in self._ranges
            )
            wanted.since = wanted.since if wanted.ready else self._clock()
            wanted.ready.append(item)
            self._something_ready.notify()
            return wanted.number in self._ranges

    def _send_all(self) -> None:
        try:
            with contextlib.suppress(ConnectionFailed):  # the relay is gone
                while (found := self._next()) is not None:
                    number, item = found
                    if item is None:
                        self._outlet.send(wire.END, number, b"")
                    elif isinstance(item, Exception):
                        reason = self._source.note_failure(item)
                        self._outlet.send(wire.FAILED, number, reason.encode())
                    else:
                        # Count first: with its last byte a host may finish before the next line.
                        self._source.await_turn(len(item))
                        kind = wire.PACKED if isinstance(item, Packed) else wire.DATA
                        self._outlet.send(kind, number, item)
        finally:
            meant = self._closed
            self.close()
            if not meant:  # the supervisor then restarts the relay
                self._outlet.close()

    def _next(self) -> tuple[int, bytes | Exception | None] | None:
        """Wait for the next item to send; return it and its range, or None after `close`."""
        with self._lock:
            self._something_ready.wait_for(lambda: self._closed or self._chosen() is not None)
            chosen = self._chosen()
            if chosen is None:
                return None
            self._in_order = 0 if self._is_neglected(chosen) else self._in_order + 1
            item = chosen.ready.popleft()
            chosen.since = self._clock()
            if not isinstance(item, bytes):
                del self._ranges[chosen.number]
            chosen.room_for_more.notify()
            return chosen.number, item

    def _chosen(self) -> _Range | None:
        ready = [each for each in self._ranges.values() if each.ready]
        if not ready:
            return None
        longest = min(ready, key=lambda each: each.since)
        return longest if self._is_neglected(longest) else min(ready, key=lambda each: each.rank)

    def _is_neglected(self, waiting: _Range) -> bool:
        waited = self._clock() - waiting.since
        return waited > (NEGLECTED if self._in_order >= IN_ORDER else OVERDUE)
