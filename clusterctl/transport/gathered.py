"""Several SSH packets in one write to the network.

Paramiko writes each packet of 32 KiB by itself: three system calls, and a turn of Python's global
lock for each, were half of what sending cost.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from paramiko.packet import Packetizer


class GatheringPacketizer(Packetizer):
    """Packets leave in the order in which they were made, whoever writes them. A connection that
    breaks is told to that one; the others notice with their next packet."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._made: deque[bytes] = deque()
        self._writing = threading.Lock()
        self._gathering = threading.local()

    def write_all(self, out: Any) -> None:
        """Paramiko gives it each packet, one at a time."""
        self._made.append(out)
        if not getattr(self._gathering, "now", False):
            self._write()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """What this thread makes meanwhile is written at the end. Raises EOFError when the
        connection breaks."""
        self._gathering.now = True
        try:
            yield
        finally:
            self._gathering.now = False
            self._write()

    def _write(self) -> None:
        with self._writing:
            made = [self._made.popleft() for _ in range(len(self._made))]
            if made:
                super().write_all(b"".join(made))
