"""A name server that keeps what it was asked, and answers as name servers in the field do."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address

WRONG = "192.0.2.77"
"""What a wildcard says of every name: a documentation address."""

_A, _PTR, _NXDOMAIN = 1, 12, 3


@dataclass
class NameServer:
    """`silent`: takes questions and says nothing. `delay`: seconds before it says that there is no
    such name. `wildcard`: everything below this domain is at WRONG, and every address is a name
    there."""

    address: str
    port: int = 53
    silent: bool = False
    delay: float = 0.0
    wildcard: str = ""
    asked: list[str] = field(default_factory=list)
    """The names of all questions, in their order."""

    def answer(self, packet: bytes) -> bytes:
        """The reply to one question."""
        name, end = _question(packet)
        kind = struct.unpack("!H", packet[end : end + 2])[0]
        self.asked.append(name)
        data = b""
        if self.wildcard and kind == _A and name.endswith(f".{self.wildcard}"):
            data = IPv4Address(WRONG).packed
        if self.wildcard and kind == _PTR:
            data = _encoded(f"somebody.{self.wildcard}")
        known = bool(data) or (self.wildcard and name.endswith(f".{self.wildcard}"))
        flags = 0x8180 if known else 0x8180 | _NXDOMAIN
        head = packet[:2] + struct.pack("!5H", flags, 1, bool(data), 0, 0)
        record = struct.pack("!3HIH", 0xC00C, kind, 1, 60, len(data)) + data if data else b""
        return head + packet[12 : end + 4] + record


@contextmanager
def serving(server: NameServer) -> Iterator[NameServer]:
    """Listen on UDP until the end of the block."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind((server.address, server.port))
        server.port = listening.getsockname()[1]
        over = threading.Event()
        thread = threading.Thread(target=_serve, args=(server, listening, over), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            over.set()
            thread.join()


def _serve(server: NameServer, listening: socket.socket, over: threading.Event) -> None:
    listening.settimeout(0.1)
    while not over.is_set():
        with suppress(TimeoutError):
            packet, peer = listening.recvfrom(4096)
            reply = server.answer(packet)
            if not server.silent:
                later = threading.Timer(server.delay, _send, (listening, reply, peer))
                later.daemon = True
                later.start()


def _send(listening: socket.socket, reply: bytes, peer: tuple[str, int]) -> None:
    with suppress(OSError):  # the test is over
        listening.sendto(reply, peer)


def _question(packet: bytes) -> tuple[str, int]:
    """The name that is asked for, and where it ends."""
    labels, at = [], 12
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    return ".".join(labels), at + 1


def _encoded(name: str) -> bytes:
    labels = name.encode().split(b".")
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
