"""Takes commands to one relay, so that nobody else waits while that one is slow to listen."""

from __future__ import annotations

import contextlib
import queue
import threading

from clusterctl.errors import ConnectionFailed
from clusterctl.transfer.chain_line import FeedLine, RelayGone
from clusterctl.transfer.chain_relay import Relay

PING_EVERY = 5.0  # Seconds: a relay that hears nothing for longer believes that we are gone


class Courier:
    """Commands in the order of `tell`, and a sign of life in between, until `leave`."""

    def __init__(self, relay: Relay, line: FeedLine, host: str) -> None:
        self._relay, self._line = relay, line
        self._rows: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self._left = threading.Event()
        threading.Thread(target=self._run, name=f"courier-{host}", daemon=True).start()

    def tell(self, *rows: str) -> None:
        """Rows made by `frames.fields`, delivered together; dropped when the relay is gone."""
        self._rows.put(rows)

    def leave(self) -> None:
        """Nothing more is to be delivered."""
        self._left.set()
        self._rows.put(())

    def _run(self) -> None:
        with contextlib.suppress(ConnectionFailed, RelayGone):
            while not self._left.is_set():
                try:
                    self._relay.command(*self._rows.get(timeout=PING_EVERY))
                except queue.Empty:
                    self._relay.command("ping")
                    self._line.sign_of_life()
