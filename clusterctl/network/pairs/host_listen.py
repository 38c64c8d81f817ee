"""Listen for connections of the other hosts. Runs on hosts: see host_main."""

import select
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Tuple


def family(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def begin(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def listen(ip: str, port: int) -> socket.socket:
    found = socket.socket(family(ip), socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((ip, port))
    found.listen(512)
    return found


class Listeners:
    """Accepts connections: sends each a greeting that is unique to this run, or counts the bytes
    received. `window`: seconds of TCP ramp-up to ignore, then seconds to measure.
    """

    def __init__(self, greeting: str, ips: List[str], window: Tuple[float, float]) -> None:
        self._greeting = greeting.encode()
        self._window = window
        self._poll = select.poll()
        self._sockets: Dict[int, socket.socket] = {}
        self.counted: Dict[Tuple[int, int], float] = {}  # (lane, sender) to bit/s
        self.ephemeral = [self.greet(ip, 0) for ip in ips]
        counting = [listen(ip, 0) for ip in ips]
        self.counting: List[int] = [found.getsockname()[1] for found in counting]
        for lane, found in enumerate(counting):
            begin(self._accept, lane, found)
        begin(self._welcome)

    def greet(self, ip: str, port: int) -> int:
        """Listen on one more port and return it; 0 takes a free ephemeral one. Raises OSError."""
        found = listen(ip, port)
        self._sockets[found.fileno()] = found
        self._poll.register(found.fileno(), select.POLLIN)
        return int(found.getsockname()[1])

    def _welcome(self) -> None:
        while True:
            # A port that is added during this call is polled by the next one.
            for fd, _ in self._poll.poll(50):
                try:
                    peer, _ = self._sockets[fd].accept()
                    peer.sendall(self._greeting)
                    peer.close()
                except OSError:
                    continue

    def _accept(self, lane: int, found: socket.socket) -> None:
        while True:
            peer, _ = found.accept()
            begin(self._count, lane, peer)

    def _count(self, lane: int, peer: socket.socket) -> None:
        warm_up, window = self._window
        with peer:
            peer.settimeout(warm_up + window + 0.5)
            try:
                sender = int(peer.recv(16))
            except (OSError, ValueError):
                return
            rate = _bits_per_second(peer, warm_up, window)
            if rate:
                self.counted[lane, sender] = rate


def _bits_per_second(peer: socket.socket, warm_up: float, window: float) -> float:
    """Return the rate received, in bit/s, during the window that follows the warm-up."""
    buffer = bytearray(1 << 20)
    total = 0
    begun = now = time.monotonic() + warm_up
    while now < begun + window:
        try:
            size = peer.recv_into(buffer)
        except OSError:
            break
        now = time.monotonic()
        if not size:
            break
        if now > begun:
            total += size
    return total * 8 / max(now - begun, window / 2)
