"""How a relay reads from the relay before it: in large bites, and still not a byte too late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.upstream import AT_ONCE, Peer, UpstreamFailed, UpstreamStats

TICK = 0.1
TIMES = 100
"""Ticks to wait for anything, so that a busy machine is not taken for a fault."""

SIZE = AT_ONCE * 2

LATE = TICK * TIMES

Serve = Callable[[socket.socket, threading.Event], None]
"""Sends the body; the event says that the reader has what came so far."""

Read = Callable[..., tuple[Iterator[bytes], threading.Event]]


@pytest.fixture
def read() -> Iterator[Read]:
    listener = socket.create_server(("127.0.0.1", 0))

    def begin(
        serve: Serve, tick: float = TICK, size: int = SIZE, stats: UpstreamStats | None = None
    ) -> tuple[Iterator[bytes], threading.Event]:
        event = threading.Event()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 206 Partial Content\r\n\r\n")
                serve(connection, event)

        threading.Thread(target=answer, daemon=True).start()
        stats = stats or UpstreamStats("gpu1")
        peer = Peer("gpu1", stats, "127.0.0.1", listener.getsockname()[1], "token")
        return map(bytes, peer.pieces("ab" * 32, 0, size, tick)), event

    with listener:
        yield begin


def take(pieces: Iterator[bytes], count: int) -> bytes:
    """So many bytes, however often nothing came for a tick."""
    found = b""
    for _ in range(TIMES):
        found += next(pieces)
        if len(found) >= count:
            return found
    raise AssertionError(f"only {len(found)} of {count} bytes came")


def test_less_than_a_bite_is_taken_when_no_more_comes(
    read: Read,
) -> None:
    def serve(connection: socket.socket, event: threading.Event) -> None:
        connection.sendall(wire.LENGTH.pack(SIZE) + b"a" * 1000)
        event.wait(LATE)
        connection.sendall(b"b" * (SIZE - 1000))

    pieces, event = read(serve)

    assert take(pieces, 1000) == b"a" * 1000
    event.set()
    assert take(pieces, SIZE - 1000) == b"b" * (SIZE - 1000)


def test_a_bite_is_not_taken_in_crumbs(
    read: Read,
) -> None:
    def serve(connection: socket.socket, _: threading.Event) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(wire.LENGTH.pack(SIZE))
        for _number in range(SIZE // 1024):
            connection.sendall(b"a" * 1024)

    pieces, _ = read(serve, LATE)
    sizes: list[int] = []
    while sum(sizes) < SIZE:
        sizes.append(len(next(pieces)))

    assert len([size for size in sizes if size]) <= 8, "of 256 packets"


def test_a_connection_that_ends_in_a_bite_is_broken(
    read: Read,
) -> None:
    pieces, _ = read(lambda connection, _: connection.sendall(wire.LENGTH.pack(SIZE) + b"a"))
    with pytest.raises(UpstreamFailed, match="closed"):
        take(pieces, SIZE)
