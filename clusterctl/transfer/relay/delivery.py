"""Send a blob to a reader while it arrives, with sendfile and as far as it is there."""

import os
import select
import socket
from typing import Callable

from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.stored import Restarted, Segment, Stored

TURN = 8 << 20  # Bytes sent at a time

SLOWEST = 300.0  # Seconds without room in the socket's buffer, after which the reader is given up

SIGN_OF_LIFE = 3.0  # Seconds without bytes after which a waiting relay gets an empty frame

Ask = Callable[[Stored, Segment], None]  # Starts a fetch of the segment unless one runs


class Hung(Exception):
    """The reader closed the connection, or took nothing for SLOWEST seconds."""


class Delivery:
    """Sends bytes [start, end) of a blob over a connection."""

    def __init__(
        self, connection: socket.socket, blob: Stored, start: int, end: int, ask: Ask
    ) -> None:
        self._connection, self._blob, self._ask = connection, blob, ask
        self._position, self._end = start, end
        self._file = -1
        self._turn = 0
        self._segment = blob.segment_at(start)

    def plain(self) -> None:
        """Send them as the body of an HTTP answer. Raises OSError, Hung, Restarted, Unavailable."""
        self._run(lambda _count: None, self._check_alive)

    def framed(self) -> None:
        """Send them in frames with lengths, for relays. Raises OSError, Hung, Unavailable."""

        def announce(count: int) -> None:
            self._connection.sendall(wire.LENGTH.pack(count), socket.MSG_MORE)

        try:
            self._run(announce, lambda: self._send_all(wire.LENGTH.pack(0)))
        except Restarted:
            self._send_all(wire.LENGTH.pack(wire.RESTART))

    def _run(self, announce: Callable[[int], None], idle: Callable[[], None]) -> None:
        try:
            self._enter(self._segment)
            while self._position < self._end:
                count = self._available()
                if count:
                    announce(count)
                    self._send_file(count)
                else:
                    idle()
        finally:
            if self._file >= 0:
                os.close(self._file)

    def _enter(self, segment: Segment) -> None:
        self._segment, self._turn = segment, segment.round
        self._ask(self._blob, segment)

    def _available(self) -> int:
        segment = self._blob.segment_at(self._position)
        if segment is not self._segment:
            self._enter(segment)
        count = self._blob.wait(self._position, self._turn, SIGN_OF_LIFE)
        if count and self._file < 0:
            self._file = self._blob.open_for_reading(self._segment, self._turn)
        return min(count, TURN, self._end - self._position)

    def _send_all(self, data: bytes) -> None:
        self._connection.sendall(data)

    def _send_file(self, count: int) -> None:
        while count:
            try:
                sent = os.sendfile(self._connection.fileno(), self._file, self._position, count)
            except BlockingIOError:
                poller = select.poll()
                poller.register(self._connection, select.POLLOUT)
                if not poller.poll(SLOWEST * 1000):
                    raise Hung from None
                continue
            if not sent:
                raise OSError("%s is shorter than it was" % self._blob.path)
            self._position += sent
            count -= sent

    def _check_alive(self) -> None:
        """Raise Hung if the engine closed: it sends nothing while it waits for a body."""
        poller = select.poll()
        poller.register(self._connection, select.POLLIN | select.POLLHUP)
        if poller.poll(0) and not self._connection.recv(1, socket.MSG_PEEK):
            raise Hung
