"""The sender that hands an image to one receiver: a real process and real connections."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from clusterctl.containers.direct_transfer import NO_CONNECTION, RECEIVER, SEND, SENDER

TOKEN = b"0123456789abcdef"
DATA = b"image bytes " * 200_000


@pytest.fixture
def sender() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", SENDER.replace("+ 20", "+ 2"), "127.0.0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        process.stdin.write(TOKEN + b"\n")
        process.stdin.flush()
        yield process
        process.kill()


def port_of(sender: subprocess.Popen[bytes]) -> int:
    assert sender.stdout
    word, port = sender.stdout.readline().split()
    assert word == b"port"
    return int(port)


def test_who_knows_the_token_gets_every_byte(sender: subprocess.Popen[bytes]) -> None:
    receiver = subprocess.Popen(
        [sys.executable, "-c", RECEIVER, "127.0.0.1", str(port_of(sender))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert receiver.stdin
    receiver.stdin.write(TOKEN + b"\n")
    receiver.stdin.flush()
    assert sender.stdin
    sender.stdin.write(DATA)
    sender.stdin.close()
    received, _ = receiver.communicate()
    assert received == DATA
    assert sender.wait(10) == 0
    assert sender.stdout
    assert sender.stdout.read().split()[-2:] == [b"sent", str(len(DATA)).encode()]


@pytest.mark.parametrize("said", [b"guess\n", b"", b"x" * 300])
def test_a_stranger_gets_nothing_and_does_not_use_up_the_turn(
    sender: subprocess.Popen[bytes], said: bytes
) -> None:
    port = port_of(sender)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        with contextlib.suppress(OSError):  # hung up on already
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
        assert _rest(stranger) == b""
    assert sender.stdin
    sender.stdin.write(b"x" * 10)
    sender.stdin.close()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as friend:
        friend.sendall(TOKEN + b"\n")
        assert _rest(friend) == b"x" * 10


def _rest(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            data += chunk
    return data


def test_a_sender_that_nobody_comes_to_ends(sender: subprocess.Popen[bytes]) -> None:
    assert sender.wait(20) != 0
    assert sender.stderr
    assert NO_CONNECTION.encode() in sender.stderr.read()


def test_a_receiver_that_reaches_nobody_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", RECEIVER, "127.0.0.1", str(port)], input=TOKEN, capture_output=True
    )
    assert done.stdout == b""
    assert NO_CONNECTION.encode() in done.stderr


def test_the_token_is_read_from_stdin_only() -> None:
    assert SEND.startswith("IFS= read -r token\n")
