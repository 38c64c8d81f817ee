"""A TCP connection as a Channel: exit status 0 at its end, no stderr."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Protocol, Self

from clusterctl.errors import ConnectionFailed, UsageError
from clusterctl.transport.base import Channel, Closing, Transport


class TcpStream(Protocol):
    """The methods that a socket and a Paramiko channel share."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class SocketChannel(Closing):
    """A Channel over a connected stream."""

    def __init__(self, stream: TcpStream, host: str) -> None:
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


_CHUNK = 65536


class Tunnel(Closing):
    """Listens on 127.0.0.1 while entered, and forwards each connection to `address:port`.

    With `local_port` 0 the kernel chooses a port: see `port`. Raises UsageError when the port is
    taken.
    """

    def __init__(
        self, transport: Transport, address: str, port: int, *, local_port: int = 0
    ) -> None:
        self._transport, self._address, self._port = transport, address, port
        self._wanted = local_port
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.last_error: ConnectionFailed | None = None
        """Error of the latest connection that could not be forwarded."""

    @property
    def port(self) -> int:
        if self._listener is None:
            raise RuntimeError("the tunnel is not open")
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        try:
            self._listener = socket.create_server(("127.0.0.1", self._wanted))
        except OSError as error:
            raise UsageError(
                f"port {self._wanted} of this machine is in use",
                hint="choose a different port, or 0 for any free one",
                detail=str(error),
            ) from error
        threading.Thread(
            target=self._accept, args=(self._listener,), name="tunnel", daemon=True
        ).start()
        return self

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):  # close alone does not wake accept
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            still_open = tuple(self._open)
        for connection in still_open:
            _hang_up(connection)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._carry, args=(connection,), name="tunnel-connection", daemon=True
            ).start()

    def _carry(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            with connection, self._transport.open_tcp(self._address, self._port) as channel:
                back = threading.Thread(
                    target=_from_host, args=(channel, connection), name="tunnel-back", daemon=True
                )
                back.start()
                with contextlib.suppress(OSError, ConnectionFailed):
                    while data := connection.recv(_CHUNK):
                        channel.send(data)
                channel.close_stdin()
                back.join()
        except ConnectionFailed as error:
            self.last_error = error
        finally:
            with self._lock:
                self._open.discard(connection)


def _from_host(channel: Channel, connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := channel.recv(_CHUNK):
            connection.sendall(data)
    _hang_up(connection)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
