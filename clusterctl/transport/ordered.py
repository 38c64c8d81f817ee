"""What is sent on a Paramiko channel never follows the channel's end.

Paramiko makes a message and sends it in two steps. When the other side closes the channel in
between, its thread answers with CLOSE, and our EOF or data goes out behind it. sshd takes that
for an attack on its protocol ("ieof packet referred to nonexistent channel") and ends the whole
connection, with every command on it. A short command whose stdin is closed is enough: with both
cores of a machine busy one connection in six was lost. paramiko#1115, open since 2017.
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

# Bytes handed over at once: packets as sshd takes them, so many that a piece of an image and its
# head are among them. The peer's window may allow less.
AT_ONCE = 9 * 32704


_DATA_HEAD = struct.Struct(">BII")


class OrderedChannel:
    """The sending side of a channel: one step, under the lock that closing takes too.

    There is no public way to it: Paramiko's own parts are put together anew.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel: Any = channel

    def send(self, data: bytes | memoryview) -> int:
        """How many bytes of `data` were sent: at least one, as the peer's window allows.

        Raises OSError when the channel is closed, TimeoutError after `settimeout`'s time.
        """
        channel, data = self._channel, memoryview(data)[:AT_ONCE]
        with channel.lock:
            sizes = list(self._allowed(len(data)))

        def compose() -> Iterator[paramiko.Message]:
            start = 0
            for size in sizes:
                if channel.closed:
                    break
                yield _data_message(channel, data[start : start + size])
                start += size
            if start < sum(sizes) or not sizes:
                raise OSError("the channel is closed")

        self._send(compose)
        return sum(sizes)

    def _allowed(self, count: int) -> Iterator[int]:
        """Sizes of the packets that the peer's window has room for, `count` bytes in all at most;
        nothing on a closed channel. Waits for room for one packet."""
        while size := self._channel._wait_for_send_window(count):  # noqa: SLF001
            yield size
            count -= size
            if not count or not self._channel.out_window_size:
                return

    def sendall(self, data: bytes) -> None:
        """All of `data`. Raises OSError when the channel is closed."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.send(rest) :]
            except TimeoutError:  # `settimeout` is for readers; who receives is slow
                continue

    def send_eof(self) -> None:
        """Say that no more follows; nothing when that was said or the channel is closed."""
        self._send(lambda: filter(None, (self._channel._send_eof(),)))  # noqa: SLF001

    def _send(self, compose: Callable[[], Iterator[paramiko.Message]]) -> None:
        """Compose and send while the channel cannot be closed. During a key exchange nothing may
        be sent, and no lock be held: the exchange needs the thread that closes channels."""
        transport = self._channel.get_transport()
        deadline = time.monotonic() + transport.clear_to_send_timeout
        while transport.is_active():
            transport.clear_to_send.wait(0.1)
            with _in_one_write(transport), transport.clear_to_send_lock:
                if transport.clear_to_send.is_set():
                    with self._channel.lock:
                        for message in compose():
                            transport._send_message(message)  # noqa: SLF001
                    return
            if time.monotonic() > deadline:
                raise OSError("the key exchange does not end")
        raise OSError("the connection is gone")


def _data_message(channel: Any, data: memoryview) -> paramiko.Message:
    """RFC 4254, 5.2: type, recipient, length, bytes. Put together in one copy, which counts where
    gigabytes pass."""
    head = _DATA_HEAD.pack(MSG_CHANNEL_DATA, channel.remote_chanid, len(data))
    return paramiko.Message(b"".join((head, data)))


@contextlib.contextmanager
def _in_one_write(transport: Any) -> Iterator[None]:
    try:
        with transport.packetizer.gathered():
            yield
    except EOFError as error:  # Paramiko's word for a connection that broke
        raise OSError("the connection broke") from error


class OrderedStream:
    """A channel in a socket's clothes."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._ordered = OrderedChannel(channel)

    def sendall(self, data: bytes, /) -> None:
        self._ordered.sendall(data)

    def recv(self, size: int, /) -> bytes:
        return self._channel.recv(size)

    def settimeout(self, seconds: float | None, /) -> None:
        self._channel.settimeout(seconds)

    def shutdown(self, how: int, /) -> None:
        if how != socket.SHUT_WR:
            self._channel.shutdown_read()
        with contextlib.suppress(OSError):
            self._ordered.send_eof()

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # the connection is broken anyway
            self._channel.close()


class GatheringPacketizer(Packetizer):
    """Packets leave in the order in which they were made, whoever writes them. A connection that
    breaks is told to that one; the others notice with their next packet."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._made: deque[bytes] = deque()
        self._writing = threading.Lock()
        self._gathering = threading.local()

    def write_all(self, out: Any) -> None:
        """Paramiko gives it each packet, one at a time."""
        self._made.append(out)
        if not getattr(self._gathering, "now", False):
            self._write()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """What this thread makes meanwhile is written at the end. Raises EOFError when the
        connection breaks."""
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
