"""What leaves the source first, and who hears of it when the source fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest

from clusterctl.errors import ConnectionFailed
from clusterctl.transfer import source_multiplexer
from clusterctl.transfer.content import Blob
from clusterctl.transfer.relay import wire
from clusterctl.transfer.source_multiplexer import (
    AHEAD,
    NEGLECTED,
    OVERDUE,
    PIECE,
    TRIES,
    TRYING,
    SharedSource,
    SourceMultiplexer,
    Throttle,
)

SOON = 60.0
"""Seconds within which a thread does what it has to."""

BASE, TOP = (Blob(f"sha256:{letter * 64}", AHEAD * PIECE) for letter in "ab")


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Pieces:
    """A source of AHEAD pieces of each blob; `read` says when all of them were read."""

    def __init__(self) -> None:
        self.read = {blob.digest: threading.Event() for blob in (BASE, TOP)}

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        try:
            for _ in range(offset, blob.size, PIECE):
                yield blob.hex[:1].encode() * PIECE
        finally:
            self.read[blob.digest].set()


class BadDisk:
    """A source that nobody mapped the errors of."""

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        yield b"x" * 10
        raise OSError(5, f"Input/output error at {blob.hex[:4]}+{offset}")


class Relay:
    """Hears frames, from the moment on that it listens."""

    def __init__(self, time: Time | None = None, seconds: float = 0.0) -> None:
        self.frames: list[tuple[bytes, int, bytes]] = []
        self.listens = threading.Event()
        self.gone = False
        self.closed = threading.Event()
        self._time, self._seconds = time, seconds
        self._changed = threading.Condition()

    def send(self, kind: bytes, stream: int, payload: bytes) -> None:
        """Takes `seconds` of `time`."""
        if not self.listens.wait(SOON) or self.gone:
            raise ConnectionFailed("gone")
        if self._time is not None:
            self._time.now += self._seconds
        with self._changed:
            self.frames.append((kind, stream, payload))
            self._changed.notify_all()

    def close(self) -> None:
        self.closed.set()

    def heard(self, kind: bytes, times: int) -> list[tuple[bytes, int, bytes]]:
        with self._changed:
            assert self._changed.wait_for(
                lambda: [frame[0] for frame in self.frames].count(kind) >= times, SOON
            )
            return list(self.frames)


def feed(source: Pieces | BadDisk, time: Time) -> SharedSource:
    blobs: Mapping[str, Blob] = {blob.digest: blob for blob in (BASE, TOP)}
    return SharedSource(source, blobs, Throttle(None), time)


def want(line: SourceMultiplexer, number: int, blob: Blob) -> None:
    line.take(wire.WANT, number, wire.fields(blob.hex, 0, blob.size).encode())


def sent_streams(seconds_each: float) -> str:
    """The order in which both blobs leave, the top asked for first."""
    source, time = Pieces(), Time()
    relay = Relay(time, seconds_each)
    line = SourceMultiplexer(feed(source, time), relay, time)
    want(line, 2, TOP)
    want(line, 1, BASE)
    assert all(read.wait(SOON) for read in source.read.values())
    relay.listens.set()
    told = relay.heard(wire.END, 2)
    line.close()
    return "".join(payload[:1].decode() for kind, _, payload in told if kind == wire.DATA)


def test_the_base_gets_the_link_and_the_rest_what_it_leaves() -> None:
    order = sent_streams(0.0)
    base, top = "a" * AHEAD, "b" * AHEAD
    assert order in (base + top, top[0] + base + top[1:]), "one may be sent before there is more"


def test_over_a_slow_link_the_base_is_still_first() -> None:
    assert "a" * AHEAD in sent_streams(NEGLECTED + 0.1)


def test_who_is_behind_gets_a_piece_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_multiplexer, "IN_ORDER", 2)
    assert "aab" in sent_streams(NEGLECTED + 0.1)


def test_nobody_waits_for_so_long_that_it_is_taken_for_dead() -> None:
    order = sent_streams(OVERDUE + 0.1)
    assert order.count("a") == order.count("b") == AHEAD
    assert "ab" in order
    assert "ba" in order


def test_a_blob_that_nobody_offered_is_refused_to_who_asks() -> None:
    relay = Relay()
    relay.listens.set()
    line = SourceMultiplexer(feed(Pieces(), Time()), relay)
    want(line, 1, Blob(f"sha256:{'c' * 64}", 1))
    relay.heard(wire.FAILED, 1)
    line.close()
    assert not relay.closed.is_set()


def test_a_range_that_is_wanted_no_more_ends() -> None:
    relay = Relay()
    line = SourceMultiplexer(feed(Pieces(), Time()), relay)
    want(line, 1, BASE)
    line.take(wire.ENOUGH, 1, b"")
    want(line, 2, TOP)
    relay.listens.set()

    told = relay.heard(wire.END, 1)

    line.close()
    assert [number for kind, number, _ in told if kind == wire.END] == [2]
    assert sum(number == 1 for _, number, _ in told) <= 1, "a piece may have been on its way"


def test_a_source_that_fails_in_any_way_tells_the_relay_that_waits() -> None:
    time, relay = Time(), Relay()
    relay.listens.set()
    source = feed(BadDisk(), time)
    line = SourceMultiplexer(source, relay)
    for number in range(TRIES):
        want(line, number, BASE)
        told = relay.heard(wire.FAILED, number + 1)
        time.now += TRYING
    line.close()
    assert [kind for kind, _, _ in told] == [wire.DATA, wire.FAILED] * TRIES
    assert b"Input/output error at aaaa+0" in told[-1][2]
    assert source.problem is None, "it gave bytes each time"


def test_a_relay_that_is_gone_ends_its_line() -> None:
    before, relay, source = set(threading.enumerate()), Relay(), Pieces()
    line = SourceMultiplexer(feed(source, Time()), relay)
    relay.gone = True
    relay.listens.set()

    want(line, 1, BASE)
    for thread in set(threading.enumerate()) - before:
        thread.join(SOON)
        assert not thread.is_alive()

    want(line, 2, TOP)
    assert set(threading.enumerate()) <= before, "nobody reads for it any more"
    assert relay.closed.is_set(), "so that it is started again"
