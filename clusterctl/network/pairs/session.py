"""The operator's side of the program that tests a host's paths to the others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from clusterctl import deadlines
from clusterctl.errors import CommandFailed, CommandTimedOut
from clusterctl.network.pairs.model import Clock
from clusterctl.transport import python
from clusterctl.transport.base import Transport, lines

PROGRAM = python.Program("clusterctl.network.pairs", ("host_listen", "host_ways", "host_main"))
DOING = "testing its connections to the other hosts"


class PairProbeSession:
    """A session with the program on one host. Methods raise ConnectionFailed, PythonMissing,
    CommandFailed and CommandTimedOut."""

    def __init__(self, transport: Transport, *, sudo: bool) -> None:
        """Start the program on the host, as root with `sudo`, which raw sockets need."""
        self._host = transport.host.name
        self._channel = python.start(transport, PROGRAM, sudo=sudo)
        self._answers: Iterator[str] = lines(self._channel)

    def ask(self, command: str, argument: object = None, *, timeout: float = deadlines.PAIR) -> Any:
        """Return the answer to one command. Raises CommandTimedOut after `timeout` seconds."""
        self._channel.settimeout(timeout)
        self._channel.send(json.dumps([command, argument]).encode() + b"\n")
        try:
            answer = next(self._answers, None)
        except TimeoutError as error:
            raise CommandTimedOut(
                f"{DOING} took longer than {timeout:g} s",
                host=self._host,
                hint=f"clusterctl exec --limit {self._host} -- uptime",
            ) from error
        if answer is None:
            raise python.failure(self._channel, DOING, self._host)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise CommandFailed(
                f"{DOING} failed: its answer is not JSON", host=self._host
            ) from error

    def clocks(self, times: int = 3) -> tuple[Clock, float]:
        """Return the seconds by which the host's clock and its monotonic clock are ahead of ours.
        Uses the fastest of several measurements: half its round trip bounds the error."""
        found = []
        for _ in range(times):
            asked, started = time.time(), time.monotonic()
            said, monotonic = self.ask("clock")
            trip = time.monotonic() - started
            found.append((trip, said - asked - trip / 2, monotonic - started - trip / 2))
        trip, offset, ahead = min(found)
        return Clock(offset, trip / 2), ahead

    def close(self) -> None:
        self._channel.close()
