"""Send on a Paramiko channel in order: nothing may follow the channel's CLOSE.

Paramiko composes a message and sends it in two steps. If the other side closes the channel in
between, Paramiko's thread answers with CLOSE, and our EOF or data follows it. sshd treats that as
an attack on its protocol ("ieof packet referred to nonexistent channel") and ends the whole
connection, with every command on it. A short command whose stdin is closed is enough: on a machine
with both cores busy, one connection in six was lost (paramiko#1115, open since 2017).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_DATA
from paramiko.packet import Packetizer

# Bytes sent at once: nine packets of sshd's size, enough for a piece of an image and its header.
# The peer's window may allow less.
AT_ONCE = 9 * 32704


_DATA_HEAD = struct.Struct(">BII")


class OrderedChannel:
    """A channel with a socket's interface. It sends while holding the lock that closing also takes.

    Paramiko has no public API for this, so its private parts are combined here.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel: Any = channel

    def send_some(self, data: bytes | memoryview) -> int:
        """Send bytes of `data`, at least one, and return how many the peer's window allowed.

        Raises OSError when the channel is closed, TimeoutError after `settimeout`'s time.
        """
        channel, data = self._channel, memoryview(data)[:AT_ONCE]
        sizes, count = [], len(data)
        with channel.lock:  # packets that fit into the peer's window; none on a closed channel
            while size := channel._wait_for_send_window(count):  # noqa: SLF001
                sizes.append(size)
                count -= size
                if not count or not channel.out_window_size:
                    break

        def compose() -> Iterator[paramiko.Message]:
            start = 0
            for size in sizes:
                if channel.closed:
                    break
                # RFC 4254, 5.2: type, recipient, length, bytes. A single copy, for gigabytes.
                head = _DATA_HEAD.pack(MSG_CHANNEL_DATA, channel.remote_chanid, size)
                yield paramiko.Message(b"".join((head, data[start : start + size])))
                start += size
            if start < sum(sizes) or not sizes:
                raise OSError("the channel is closed")

        self._send(compose)
        return sum(sizes)

    def sendall(self, data: bytes, /) -> None:
        """Send all of `data`. Raises OSError when the channel is closed."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.send_some(rest) :]
            except TimeoutError:  # `settimeout` is for readers; the receiver is slow
                continue

    def recv(self, size: int, /) -> bytes:
        return bytes(self._channel.recv(size))

    def settimeout(self, seconds: float | None, /) -> None:
        self._channel.settimeout(seconds)

    def shutdown(self, how: int, /) -> None:
        if how != socket.SHUT_WR:
            self._channel.shutdown_read()
        with contextlib.suppress(OSError, EOFError):
            self.send_eof()

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # the connection is broken anyway
            self._channel.close()

    def send_eof(self) -> None:
        """Send EOF; do nothing if it was sent before or the channel is closed."""
        self._send(lambda: filter(None, (self._channel._send_eof(),)))  # noqa: SLF001

    def _send(self, compose: Callable[[], Iterator[paramiko.Message]]) -> None:
        """Compose and send while the channel cannot be closed. During a key exchange nothing may be
        sent and no lock be held: the exchange needs the thread that closes channels."""
        transport = self._channel.get_transport()
        deadline = time.monotonic() + transport.clear_to_send_timeout
        while transport.is_active():
            transport.clear_to_send.wait(0.1)
            try:
                with transport.packetizer.gathered(), transport.clear_to_send_lock:
                    if transport.clear_to_send.is_set():
                        with self._channel.lock:
                            for message in compose():
                                transport._send_message(message)  # noqa: SLF001
                        return
            except EOFError as error:  # raised by Paramiko for a broken connection
                raise OSError("the connection broke") from error
            if time.monotonic() > deadline:
                raise OSError("the key exchange did not end")
        raise OSError("the connection is gone")


class GatheringPacketizer(Packetizer):
    """Sends packets in the order of their creation, whichever thread writes them. A broken
    connection raises in that thread; the others notice at their next packet."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._made: deque[bytes] = deque()
        self._writing = threading.Lock()
        self._gathering = threading.local()

    def write_all(self, out: Any) -> None:
        """Queue one packet from Paramiko, and write it unless this thread is gathering."""
        self._made.append(out)
        if not getattr(self._gathering, "now", False):
            self._write()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Buffer the packets that this thread creates inside the block, and write them in one call
        when it exits. Raises EOFError when the connection breaks."""
        self._gathering.now = True
        try:
            yield
        finally:
            self._gathering.now = False
            self._write()

    def _write(self) -> None:
        with self._writing:
            made = [self._made.popleft() for _ in range(len(self._made))]
            if made:
                super().write_all(b"".join(made))
