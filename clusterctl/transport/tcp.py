"""A TCP connection as a Channel: exit status 0 at its end, no stderr."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Protocol

from clusterctl.errors import ConnectionFailed
from clusterctl.transport.closing import Closing


class Stream(Protocol):
    """What a socket and a Paramiko channel share."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class SocketChannel(Closing):
    """A Channel over a connected stream."""

    def __init__(self, stream: Stream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._ended = threading.Event()

    def send(self, data: bytes) -> None:
        try:
            self._stream.sendall(data)
        except OSError as error:
            raise ConnectionFailed(
                "the TCP connection was closed", host=self._host, detail=str(error)
            ) from error

    def recv(self, size: int) -> bytes:
        try:
            data = self._stream.recv(size)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if not data:
            self._ended.set()
        return data

    def settimeout(self, seconds: float | None) -> None:
        self._stream.settimeout(seconds)

    def close_stdin(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the TCP connection is still open after {timeout} s")
        return 0

    def stderr_tail(self) -> str:
        return ""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._ended.set()
