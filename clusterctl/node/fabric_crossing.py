"""TCP connections between nodes, to ephemeral ports, as Gloo, NCCL and vLLM's queues make them.

Connections do not bind a source address: as with those programs, routing chooses the outgoing
interface, and it is reported. A listener sends its host's name, so that an address that leads to
the caller itself or to another host is not taken for the peer. Then 64 KiB follow: where an MTU
drops large packets, small ones arrive and these do not.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from typing import List, Sequence

from clusterctl.node.fabric_documents import Crossing

# Seconds for connecting and for each answer: TCP repeats a lost SYN after 1 s and after 3 s.
WITHIN = 3.0

_ROUNDS = 10
_PING = b"."
_BULK = 2**16
_GOT = b"!"


class Echo:
    """A listener on one address and an ephemeral port. It sends its host's name, echoes pings, and
    confirms when all 64 KiB have arrived."""

    def __init__(self, host: str, ip: str) -> None:
        """Raise OSError if the address cannot be bound."""
        self._greeting = host.encode() + b"\n"
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        self._socket = socket.create_server((ip, 0), family=family, backlog=512)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # close() alone does not wake the thread that blocks in accept().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(2 * WITHIN)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.sendall(self._greeting)
            missing = _BULK
            while data := peer.recv(_BULK):
                if data == _PING:
                    peer.sendall(data)
                    continue
                missing -= len(data)
                if missing <= 0:
                    peer.sendall(_GOT)


def cross_all(targets: Sequence[Crossing]) -> List[Crossing]:
    """Try all connections at once, and return each with its result."""
    found: List[Crossing] = list(targets)

    def one(index: int) -> None:
        found[index] = cross(targets[index])

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(len(targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WITHIN)
    return found


def cross(target: Crossing) -> Crossing:
    """Try one connection, and return it with the error (if any), source address and round trip."""
    left_by, trip, error = "", 0.0, ""
    try:
        with socket.create_connection((target.ip, target.port), WITHIN) as connection:
            left_by = connection.getsockname()[0]
            error, trip = _talk(connection, target.target)
    except socket.timeout:  # noqa: UP041 - Python 3.9 has it as a class of its own
        error = f"no answer within {WITHIN:g} s"
    except OSError as failure:
        error = failure.strerror or str(failure)
    return replace(target, error=error, left_by=left_by, round_trip=trip)


def _talk(connection: socket.socket, expected: str) -> tuple[str, float]:
    """Return the error ("" if none), and the shortest round trip in seconds."""
    connection.settimeout(WITHIN)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name = b""
    while not name.endswith(b"\n"):
        part = connection.recv(256)
        if not part:
            return "the connection was closed without an answer", 0.0
        name += part
    if name.decode().strip() != expected:
        return f"{name.decode().strip()} answers there", 0.0
    trips = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        connection.sendall(_PING)
        connection.recv(1)
        trips.append(time.perf_counter() - began)
    try:
        connection.sendall(b"#" * _BULK)
        return "" if connection.recv(1) == _GOT else "64 KiB did not arrive", min(trips)
    except socket.timeout:  # noqa: UP041 - as above
        return f"it answers, and 64 KiB do not arrive within {WITHIN:g} s", min(trips)
