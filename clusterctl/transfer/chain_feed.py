"""The source of a chain: ranges of its blobs, how fast they may leave, and whether it works."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from clusterctl.errors import ClusterctlError, StepFailed
from clusterctl.transfer.content import Blob, BlobSource
from clusterctl.transfer.relay.upstream import SOURCE

# Bytes sent at a time: what a relay must get within a stall time, on the slowest link.
PIECE = 256 * 1024

LIMITED_PIECE = 32 * 1024  # The same under a rate limit, which is to be even

TRIES = 3
TRYING = 5.0  # A source that gave nothing this many times, and for so many seconds, has failed

LIES = 2  # Wrong blobs under one digest: the second time it was no accident on the way


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


class Feed:
    """The source, for all relays of a chain."""

    def __init__(
        self,
        source: BlobSource | None,
        blobs: Mapping[str, Blob],
        throttle: Throttle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._throttle = source, throttle
        self._blobs = {blob.hex: blob for blob in blobs.values()}
        self._ranks = {hexadecimal: place for place, hexadecimal in enumerate(self._blobs)}
        self._lock = threading.Lock()
        self._clock = clock
        self._failing: tuple[float, int] | None = None
        self._failure: ClusterctlError | None = None
        self._blamed: Counter[str] = Counter()
        self.sent = 0  # Bytes, to all relays together

    @property
    def problem(self) -> ClusterctlError | None:
        """Why the source will not deliver: it failed several times without a byte between, or
        what it gives is not what it promised."""
        with self._lock:
            for digest, times in self._blamed.items():
                if times >= LIES:
                    return _not_what_it_was(digest)
            if self._failing is None:
                return None
            since, times = self._failing
            final = times >= TRIES and self._clock() - since >= TRYING
            return self._failure if final else None

    def blame(self, name: str, digest: str) -> None:
        """A relay found that `name` sent wrong bytes."""
        if name == SOURCE:
            with self._lock:
                self._blamed[digest] += 1

    def rank(self, digest: str, start: int) -> tuple[int, int]:
        """What is wanted first comes first: the place of these bytes among all."""
        return self._ranks.get(digest, len(self._ranks)), start

    def pieces(self, digest: str, start: int, size: int) -> Iterator[bytes]:
        """A range of a blob. Raises whatever the source does; tell `note_failure` then."""
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
        if size:
            raise StepFailed(
                f"the source ends {size} bytes before the end of sha256:{digest[:12]}",
                hint="the file was cut short, or changed while it was sent: get it anew",
            )

    def await_turn(self, count: int) -> None:
        """Returns when the rate limit lets `count` bytes leave."""
        self._throttle.take(count)

    def passed(self, count: int) -> None:
        """So many bytes go to a relay now."""
        with self._lock:
            self.sent += count
            self._failing = self._failure = None

    def note_failure(self, error: Exception) -> str:
        """A range ended with this; the words for who waits for it."""
        told = _as_words(error)
        with self._lock:
            since, times = self._failing or (self._clock(), 0)
            self._failing, self._failure = (since, times + 1), told
        return str(told)


def _as_words(error: Exception) -> ClusterctlError:
    if isinstance(error, ClusterctlError):
        return error
    return StepFailed(
        f"the source cannot be read: {error}",
        hint="run the same command again: it goes on where it stopped",
        detail=repr(error),
    )


def _not_what_it_was(digest: str) -> StepFailed:
    return StepFailed(
        f"the source gives other bytes than those of sha256:{digest[:12]}",
        hint="the file is damaged, or changed while it was sent: get it anew",
    )
