"""HTTP over a transport's channel, to send requests to a Docker engine on another host.

`docker system dial-stdio` on the host connects a channel to the engine's socket, wherever that is,
so the operator's machine needs neither Docker nor a second SSH connection.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from clusterctl.errors import ClusterctlError, ConnectionFailed
from clusterctl.transport.base import Channel

OpenChannel = Callable[[], Channel]
# Builds the error for a channel that ended without an answer.
HungUp = Callable[[Channel], Exception]


class ChannelAdapter(HTTPAdapter):
    """Sends all requests over one channel that stays open; a second request waits for the first.

    There is only one channel because a host allows at most four at once (transport.base).
    """

    def __init__(self, open_channel: OpenChannel, hung_up: HungUp) -> None:
        self._pool = HTTPConnectionPool("docker", maxsize=1, block=True)
        self._pool.ConnectionCls = cast(
            "Any", partial(_ChannelConnection, dial=lambda: _ChannelSocket(open_channel(), hung_up))
        )
        super().__init__()

    def get_connection_with_tls_context(
        self,
        request: requests.PreparedRequest,
        verify: bool | str | None,
        proxies: Mapping[str, str] | None = None,
        cert: tuple[str, str] | str | None = None,
    ) -> HTTPConnectionPool:
        del request, verify, proxies, cert
        return self._pool

    def request_url(
        self, request: requests.PreparedRequest, proxies: Mapping[str, str] | None
    ) -> str:
        """Return only path and query: the operator's proxies are not involved."""
        del proxies
        return request.path_url

    def close(self) -> None:
        self._pool.close()


class _ChannelConnection(HTTPConnection):
    def __init__(self, *, dial: Callable[[], _ChannelSocket], **options: Any) -> None:
        super().__init__(**options)
        self._dial = dial

    def connect(self) -> None:
        self.sock = cast("Any", self._dial())
        self.sock.settimeout(self.timeout)

    @property
    def is_connected(self) -> bool:
        # urllib3 would poll a file descriptor, which a channel does not have.
        return self.sock is not None and cast("_ChannelSocket", self.sock).quiet


class _ChannelSocket:
    """The part of a socket that http.client and urllib3 use."""

    def __init__(self, channel: Channel, hung_up: HungUp) -> None:
        self._channel = channel
        self._hung_up = hung_up
        self._answered = False
        self._ended = False

    @property
    def quiet(self) -> bool:
        """Whether the channel is open without data to read: data between requests means that it is
        dead."""
        if self._ended:
            return False
        self._channel.settimeout(0.001)
        try:
            self._channel.recv(1)
        except TimeoutError:
            return True
        except (OSError, ClusterctlError):
            return False
        return False

    def settimeout(self, seconds: float | None) -> None:
        self._channel.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        try:
            self._channel.send(bytes(data))
        except ConnectionFailed:
            self._ended = True
            if self._answered:
                raise
            # The command ended before the request was written, as on a host without Docker.
            raise self._hung_up(self._channel) from None

    def receive(self, size: int) -> bytes:
        data = self._channel.recv(size)
        if not data:
            self._ended = True
            if not self._answered:
                raise self._hung_up(self._channel)
        self._answered = True
        return data

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_ChannelReader(self))

    def shutdown(self, _how: int) -> None:
        self._channel.close_stdin()

    def close(self) -> None:
        self._ended = True
        self._channel.close()


class _ChannelReader(io.RawIOBase):
    def __init__(self, sock: _ChannelSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._sock.receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)
