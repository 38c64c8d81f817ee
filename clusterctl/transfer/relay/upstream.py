"""Upstreams to read from, and the choice among them: first the nearest preceding host of the chain,
last the source at the other end of stdin, or a hub."""

import socket
import threading
import time
import zlib
from collections import deque
from typing import Any, Callable, Collection, Deque, Dict, Iterator, List, Optional

from clusterctl.transfer.relay import wire

READ = 1 << 20
# Bytes of a body to wait for before a read. A reader that wakes for every packet, and wakes all
# threads that wait for its bytes, keeps a core busy with nothing else.
AT_ONCE = 128 << 10

# Bytes of a stream that may wait for the disk; with more, reading stdin stops
BUFFERED = 8 << 20

SOURCE = "source"  # Name of the operator's machine in a chain
HUB = "the hub"  # Name of the hub that the first host reads, if there is one

CONNECT_LIMIT = 5.0  # Seconds

# Seconds without a sign of life, of which a waiting relay gives one every 3 s
SHORT_STALL = 7.0

REST = 1.0
# Seconds that a failed upstream is not used: REST at first, LONG_REST once it has failed for
# longer than a stall time
LONG_REST = 30.0


class UpstreamFailed(Exception):
    """The upstream cannot deliver; the text is the reason. `for_now`: it may recover soon."""

    def __init__(self, reason: str, for_now: bool = True) -> None:
        super().__init__(reason)
        self.for_now = for_now


class WrongSoFar(Exception):
    """The upstream found that the bytes it passed on were wrong, and starts over."""


class UpstreamStats:
    """State of an upstream across all its streams. Times are from time.monotonic."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.streams = 0
        self.received = 0
        self.resting_until = 0.0
        self._clock = clock
        self._heard = self._moved = clock()
        self._lock = threading.Lock()

    def began(self) -> None:
        with self._lock:
            if not self.streams:
                self._heard = self._moved = self._clock()
            self.streams += 1

    def ended(self) -> None:
        with self._lock:
            self.streams -= 1

    def heard(self, count: int = 0) -> None:
        with self._lock:
            self._heard = self._clock()
            self._moved = self._heard if count else self._moved
            self.received += count

    def silence(self) -> float:
        """Seconds since the last sign of life, in any stream."""
        return self._clock() - self._heard

    def standstill(self) -> float:
        """Seconds since the last byte, in any stream."""
        return self._clock() - self._moved


class Upstream:
    """Reads ranges of blobs. `name`: the host's name, or `source`."""

    def __init__(self, name: str, stats: UpstreamStats) -> None:
        self.name = name
        self.stats = stats

    def pieces(self, digest: str, start: int, size: int, tick: float) -> Iterator[Any]:
        """Yield the bytes as they come, and b"" at least every `tick` seconds of silence, so that
        the reader can decide to give up. Raises UpstreamFailed, WrongSoFar."""
        raise NotImplementedError


class Peer(Upstream):
    """A relay on another host."""

    def __init__(
        self, name: str, stats: UpstreamStats, address: str, port: int, token: str
    ) -> None:
        super().__init__(name, stats)
        self.address, self.port = address, port
        self._token = token

    def pieces(self, digest: str, start: int, size: int, tick: float) -> Iterator[Any]:
        try:
            with socket.create_connection((self.address, self.port), CONNECT_LIMIT) as stream:
                stream.settimeout(tick)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream.sendall(wire.request(digest, start, size, self._token))
                yield from self._frames(stream, size)
        except OSError as error:
            raise UpstreamFailed(str(error) or type(error).__name__) from error

    def _frames(self, stream: socket.socket, size: int) -> Iterator[Any]:
        reader = _Patient(stream)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = reader.read(1)
            head += byte
            if not byte:
                yield b""
        status = wire.status_of(head)
        if status != 206:
            raise UpstreamFailed("it returned HTTP status %d" % status, for_now=False)
        while size > 0:
            header = b""
            while len(header) < wire.LENGTH.size:
                some = reader.read(wire.LENGTH.size - len(header))
                header += some
                if not some:
                    yield b""
            length = wire.LENGTH.unpack(header)[0]
            if length == wire.RESTART:
                raise WrongSoFar
            if length > size:
                raise UpstreamFailed("it sends more than it was asked for")
            size -= length
            yield wire.STILL_THERE if not length else b""
            while length:
                piece = reader.view(length)
                length -= len(piece)
                yield piece


class _Patient:
    """Reads a socket; returns b"" after the socket's timeout. Raises UpstreamFailed when the other
    side closes it."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._buffer = bytearray(READ)
        self._bite = AT_ONCE
        self._least = 1

    def read(self, size: int) -> bytes:
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        """Return at most `size` bytes, valid until the next call."""
        view = memoryview(self._buffer)[: min(size, READ)]
        self._wake_for(min(size, self._bite))
        try:
            count = self._stream.recv_into(view)
        except socket.timeout:
            return self._what_there_is(view)
        if not count:
            raise UpstreamFailed("it closed the connection")
        return view[:count]

    def _what_there_is(self, view: memoryview) -> memoryview:
        """After a timeout, return the bytes that have arrived, without waiting. If there are some,
        fewer than AT_ONCE arrive at a time (a slow network, or a kernel buffer that does not grow,
        before Linux 4.18), and later reads return after one byte."""
        self._wake_for(1)
        tick = self._stream.gettimeout()
        self._stream.settimeout(0.0)
        try:
            count = self._stream.recv_into(view)
            self._bite = 1 if count else self._bite
            return view[:count]
        except BlockingIOError:
            return view[:0]
        finally:
            self._stream.settimeout(tick)

    def _wake_for(self, count: int) -> None:
        if count == self._least:
            return
        try:
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._least = count
        except OSError:  # a kernel without SO_RCVLOWAT
            self._bite = self._least = 1


class _Stream:
    """One range being received from the source."""

    def __init__(self, lock: threading.Lock) -> None:
        # One per stream, so that a piece wakes only the reader that waits for it
        self.changed = threading.Condition(lock)
        self.arrived: Deque[bytes] = deque()
        self.waiting = 0
        self.failure = ""
        self.ended = False


class Source(Upstream):
    """The controller's source, over stdin and stdout. `tell` writes a frame."""

    def __init__(self, stats: UpstreamStats, tell: Callable[[bytes, int, bytes], None]) -> None:
        super().__init__(SOURCE, stats)
        self._tell = tell
        self._streams: Dict[int, _Stream] = {}
        self._count = 0
        self._lock = threading.Lock()

    def pieces(self, digest: str, start: int, size: int, tick: float) -> Iterator[Any]:
        stream = _Stream(self._lock)
        with self._lock:
            self._count += 1
            number = self._count
            self._streams[number] = stream
        try:
            self._tell(wire.WANT, number, wire.fields(digest, start, size).encode())
            while size > 0:
                piece = self._next(stream, tick)
                size -= len(piece or b"") if piece is not wire.STILL_THERE else 0
                yield piece if piece is not None else b""
        finally:
            with self._lock:
                del self._streams[number]
                stream.changed.notify_all()
            if size > 0:
                self._tell(wire.ENOUGH, number, b"")

    def deliver(self, kind: bytes, number: int, payload: bytes) -> None:
        """Add a frame to its stream; wait while BUFFERED bytes of it are unread."""
        if kind == wire.PACKED:
            payload = zlib.decompress(payload)
        with self._lock:
            stream = self._streams.get(number)
            if stream is None:
                return

            def has_room() -> bool:
                stream = self._streams.get(number)
                return stream is None or stream.waiting < BUFFERED

            stream.changed.wait_for(has_room)
            if kind in (wire.DATA, wire.PACKED):
                stream.arrived.append(payload)
                stream.waiting += len(payload)
            elif kind == wire.ALIVE:
                stream.arrived.append(wire.STILL_THERE)
            else:
                stream.failure = payload.decode("utf-8", "replace") if kind == wire.FAILED else ""
                stream.ended = True
            stream.changed.notify_all()

    def _next(self, stream: _Stream, tick: float) -> Optional[bytes]:
        with stream.changed:
            stream.changed.wait_for(lambda: bool(stream.arrived) or stream.ended, tick)
            if stream.arrived:
                piece = stream.arrived.popleft()
                stream.waiting -= len(piece) if piece is not wire.STILL_THERE else 0
                stream.changed.notify_all()
                return piece
            if stream.ended:
                raise UpstreamFailed(stream.failure or "its bytes ended before the range did")
            return None


class Upstreams:
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
        """Set the upstreams, preferred first. Objects already in the list keep their state."""
        with self._lock:
            before, self._upstreams = self._upstreams, upstreams
            for place, upstream in enumerate(upstreams):
                if upstream not in before[: place + 1]:  # new, or preferred to more than before
                    self._since[upstream.name] = self._clock()
                if upstream not in before:
                    self._failed_at.pop(upstream.name, None)

    def all(self) -> List[Upstream]:
        with self._lock:
            return list(self._upstreams)

    def choose(self, without: Collection[str]) -> Optional[Upstream]:
        """Return the first upstream that is neither in `without` nor resting. None: wait, then
        retry.

        The source replaces a host only after that host has been gone for the stall time: a killed
        relay is back sooner, and sending bytes from the source twice costs more than the wait.
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
                if upstream.name not in without and upstream.stats.resting_until <= now:
                    return upstream
            return None

    def failed(self, upstream: Upstream, for_now: bool) -> None:
        """Let a failed upstream rest. `for_now`: it just broke, and may recover soon."""
        with self._lock:
            now = self._clock()
            if for_now:
                self._failed_at.setdefault(upstream.name, now)
            long_gone = now - self._failed_at.get(upstream.name, now - self.stall) >= self.stall
            if upstream.name != SOURCE:
                upstream.stats.resting_until = now + (LONG_REST if long_gone else REST)

    def works(self, upstream: Upstream) -> None:
        """Forget earlier failures of `upstream`: it delivered bytes."""
        with self._lock:
            self._failed_at.pop(upstream.name, None)

    def is_first_detour(self) -> bool:
        """Return True on the first call only: users need just one message."""
        with self._lock:
            first, self._told_of_detour = not self._told_of_detour, True
            return first

    def has_better(self, upstream: Upstream, joined: float) -> bool:
        """Whether a better upstream appeared after time `joined`, or `upstream` must no longer be
        used."""
        with self._lock:
            for other in self._upstreams:
                if other is upstream:
                    return False
                if self._since.get(other.name, 0.0) > joined:
                    return True
            return bool(self._upstreams)

    def patience(self, upstream: Upstream) -> float:
        """Seconds of silence after which to give up `upstream`: few if there is another host, which
        costs the source nothing."""
        with self._lock:
            others = [each for each in self._upstreams if each.name not in (upstream.name, SOURCE)]
            is_spare = upstream.name != SOURCE and any(
                each.stats.resting_until <= self._clock() for each in others
            )
            return min(SHORT_STALL, self.stall) if is_spare else self.stall
