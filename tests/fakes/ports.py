"""Ports of this machine that are a test's own."""

from __future__ import annotations

import socket


def reserved(address: str = "127.0.0.1") -> socket.socket:
    """A socket that is bound and does not listen. As long as it is open, its port is refused, is
    given to nobody who asks for any port, and can be listened at by servers, which all set
    SO_REUSEADDR."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((address, 0))
    return found


def port_of(reservation: socket.socket) -> int:
    number: int = reservation.getsockname()[1]
    return number


def listening(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(1024)  # nobody accepts, and every look of the worker stays in the queue
    return server
