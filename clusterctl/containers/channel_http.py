"""HTTP over a transport's channel, to send requests to a Docker engine on another host.

`docker system dial-stdio` on the host connects a channel to the engine's socket, wherever that is,
so the operator's machine needs neither Docker nor a second SSH connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from httpcore2 import (
    SOCKET_OPTION,
    ConnectionPool,
    NetworkBackend,
    NetworkStream,
    ReadError,
    ReadTimeout,
)

from clusterctl.errors import ClusterctlError, ConnectionFailed
from clusterctl.transport.base import Channel

OpenChannel = Callable[[], Channel]
# Builds the error for a channel that ended without an answer.
HungUp = Callable[[Channel], Exception]


def channel_pool(open_channel: OpenChannel, hung_up: HungUp) -> ConnectionPool:
    """Return a pool that sends all requests over one channel, which stays open; a second request
    waits for the first. One, because a host allows at most four at once (transport.base)."""
    backend = _ChannelBackend(open_channel, hung_up)
    return ConnectionPool(max_connections=1, network_backend=backend)


class _ChannelBackend(NetworkBackend):
    def __init__(self, open_channel: OpenChannel, hung_up: HungUp) -> None:
        self._open, self._hung_up = open_channel, hung_up

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> NetworkStream:
        """Open a channel, which leads to one engine only: whatever the address."""
        del host, port, timeout, local_address, socket_options
        return _ChannelStream(self._open(), self._hung_up)


class _ChannelStream(NetworkStream):
    def __init__(self, channel: Channel, hung_up: HungUp) -> None:
        self._channel = channel
        self._hung_up = hung_up
        self._answered = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._channel.settimeout(timeout)
        try:
            data = self._channel.recv(max_bytes)
        except TimeoutError as error:
            raise ReadTimeout(str(error)) from error
        except OSError as error:
            raise ReadError(str(error)) from error
        if not data and not self._answered:
            raise self._hung_up(self._channel)
        self._answered = True
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout  # The engine reads a request at once
        try:
            self._channel.send(buffer)
        except ConnectionFailed:
            if self._answered:
                raise
            # The command ended before the request was written, as on a host without Docker.
            raise self._hung_up(self._channel) from None

    def close(self) -> None:
        self._channel.close()

    def get_extra_info(self, info: str) -> Any:
        """Return whether there is something to read, if asked: data between requests, or the end of
        it, means that the channel is dead."""
        if info != "is_readable":
            return None
        self._channel.settimeout(0.001)
        try:
            self._channel.recv(1)
        except TimeoutError:
            return False
        except (OSError, ClusterctlError):
            return True
        return True
