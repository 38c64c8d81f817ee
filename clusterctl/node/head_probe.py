"""A worker's look at its head: is a GCS listening there, and is it still the same one?

A raylet whose GCS was replaced within seconds took 54 s to notice and to end (Ray 2.60: "GCS
returned an authentication error"). A connection that is held open breaks the moment the GCS
ends, and the one tried right after it is refused: then the next GCS is a new one, which knows
nothing of this node. A connection that times out says nothing: the cable may be out.
"""

from __future__ import annotations

import socket
import threading
import time

CONNECT_TIMEOUT = 2.0


class HeadProbe:
    """Holds one connection after another in a thread; `answer` is the last outcome.

    `answer`: unknown | open | refused | silent.
    """

    def __init__(self, ip: str, port: int, every: float) -> None:
        """`every`: seconds that a connection is held, and between two that fail."""
        self._address = (ip, port)
        self._every = every
        self._ended = threading.Event()
        self.answer = "unknown"
        self.losses = 0
        """How often a GCS that had answered was gone: raylets from before are of no use."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        answered = False
        while not self._ended.is_set():
            outcome = self._look()
            self.losses += answered and outcome == "refused"
            answered = outcome == "open" or (answered and outcome == "silent")
            self.answer = outcome
            if outcome != "open":
                self._ended.wait(self._every)

    def _look(self) -> str:
        """Connect, and hold the connection until it breaks or its time is over."""
        try:
            with socket.create_connection(self._address, CONNECT_TIMEOUT) as connection:
                self.answer = "open"
                _hold(connection, self._every)
        except ConnectionRefusedError:
            return "refused"
        except OSError:
            return "silent"
        return "open"


def _hold(connection: socket.socket, seconds: float) -> None:
    """Return when the other side closes, or after that time. What it sends is its greeting."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if not connection.recv(4096):
                return
        except OSError:
            return
