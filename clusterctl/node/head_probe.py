"""A worker's look at its head: is a GCS listening there?

A raylet whose GCS was replaced takes 20 s and more to notice and to end. A refused connection
says at once that the GCS is gone, and the next accepted one that there is a new GCS, which
knows nothing of this node. A connection that times out says neither: the cable may be out.
"""

from __future__ import annotations

import socket
import threading

CONNECT_TIMEOUT = 2.0


class HeadProbe:
    """Tries the port over and over in a thread; `answer` is the last outcome.

    `answer`: unknown | open | refused | silent.
    """

    def __init__(self, ip: str, port: int, every: float) -> None:
        self._address = (ip, port)
        self._every = every
        self._ended = threading.Event()
        self.answer = "unknown"
        self.refusals = 0
        """In a row."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.answer = look(*self._address)
            self.refusals = self.refusals + 1 if self.answer == "refused" else 0
            self._ended.wait(self._every)


def look(ip: str, port: int) -> str:
    """One connection: open | refused | silent."""
    try:
        with socket.create_connection((ip, port), CONNECT_TIMEOUT):
            return "open"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
