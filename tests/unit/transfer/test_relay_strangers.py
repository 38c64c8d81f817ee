"""A relay's ports are open to its network: a stranger keeps nobody from it."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.transfer.relay.serving import MOST_STRANGERS, PeerHandler, serve

TOKEN = "secret"

# A relay's peer side in a process of its own, which may open few files.
PROGRAM = """
import resource, sys, hashlib
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
from clusterctl.transfer.relay.fetching import Holdings
from clusterctl.transfer.relay.serving import PeerHandler, serve
from clusterctl.transfer.relay.upstream import Upstreams
PeerHandler.holdings = Holdings(Upstreams(15.0), lambda *_: None)
PeerHandler.expected = hashlib.sha256(b"Bearer secret").digest()
server = serve("127.0.0.1", 0, PeerHandler)
server.head_limit = float(sys.argv[1])
print(server.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[object]:
    with ExitStack() as stack:

        def begin(head_limit: float) -> int:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(head_limit)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=Path(__file__).parents[3],
                )
            )
            stack.callback(process.kill)
            assert process.stdout
            return int(process.stdout.readline())

        yield begin


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


def asked(port: int, token: str = TOKEN) -> bytes:
    """The first line of the answer to a request for a blob that is not there."""
    with connect(port) as stream:
        head = f"GET /blobs/sha256:{'a' * 64} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        stream.sendall(head.encode())
        return stream.recv(100).partition(b"\r\n")[0]


def answered_within(port: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if asked(port).split()[1:2] == [b"404"]:
                return True
        except OSError:
            time.sleep(0.1)
    return False


def test_running_out_of_descriptors_ends_no_listener(start: object) -> None:
    assert callable(start)
    port = start(60.0)
    held = [connect(port) for _ in range(64)]
    time.sleep(0.5)  # the relay accepts as many as it may
    for stream in held:
        stream.close()
    assert answered_within(port, 30)


def test_strangers_who_say_nothing_or_little_are_turned_away(start: object) -> None:
    assert callable(start)
    port = start(0.5)
    assert asked(port, "wrong").split()[1] == b"401"
    with connect(port) as silent, connect(port) as slow:
        began = time.monotonic()
        slow.settimeout(0.1)
        closed = False
        while not closed and time.monotonic() - began < 30:  # a byte now and then, for ever
            try:
                slow.sendall(b"G")
                closed = slow.recv(10) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed
        assert silent.recv(1) == b""
    assert answered_within(port, 30)


def test_more_strangers_than_there_is_room_for_leave_room_for_others() -> None:
    PeerHandler.expected = hashlib.sha256(b"Bearer secret").digest()
    server = serve("127.0.0.1", 0, PeerHandler)
    with ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        first = stack.enter_context(connect(server.port))
        for _ in range(MOST_STRANGERS + 5):
            stack.enter_context(connect(server.port))
        first.settimeout(30)
        assert first.recv(1) == b"", "the oldest goes"
        with connect(server.port) as stream:
            stream.sendall(b"GET /blobs/sha256:x HTTP/1.1\r\n\r\n")
            assert b" 401 " in stream.recv(100).partition(b"\r\n")[0] + b" "
