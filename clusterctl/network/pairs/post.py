"""A host's part in the proof, as the operator holds it: the program there, and a channel to it."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from clusterctl import deadlines
from clusterctl.errors import CommandFailed, CommandTimedOut
from clusterctl.network.pairs.model import Clock
from clusterctl.transport.base import Transport, last_words, lines

_PACKAGE = "clusterctl.network.pairs"
_PARTS = ("host_listen", "host_ways", "host_main")
"""In the order in which they import each other."""

_START = """\
import ast, sys
for name, source in ast.literal_eval(sys.stdin.readline()):
    module = sys.modules[name] = type(sys)(name)
    exec(source, module.__dict__)
module.main()
"""

_PARSING = threading.Lock()
"""Python 3.11's parser breaks when several threads are deep in it (cpython issue 106905)."""


@cache
def _program() -> bytes:
    """All of it as one line: hosts get no file."""
    parts = [
        (f"{_PACKAGE}.{part}", files(_PACKAGE).joinpath(f"{part}.py").read_text())
        for part in _PARTS
    ]
    return f"{parts!r}\n".encode()


class Post:
    """Answers of one host. Raises ConnectionFailed, CommandFailed with its last words, and
    CommandTimedOut."""

    def __init__(self, transport: Transport, *, sudo: bool) -> None:
        """Start the program there; `sudo` for raw sockets."""
        self._host = transport.host.name
        self._channel = transport.open_channel(["python3", "-c", _START], sudo=sudo)
        self._lines: Iterator[str] = lines(self._channel)
        self._channel.send(_program())

    def ask(
        self, command: str, argument: object = None, *, timeout: float = deadlines.PAIRS_ANSWER
    ) -> Any:
        """The answer to one command, within `timeout` seconds."""
        self._channel.settimeout(timeout)
        self._channel.send(f"{(command, argument)!r}\n".encode())
        try:
            answer = next(self._lines, None)
        except TimeoutError as error:
            raise CommandTimedOut(
                f"the proof of its ways to the others did not answer within {timeout:g} s",
                host=self._host,
                hint=f"clusterctl exec --limit {self._host} -- uptime",
            ) from error
        if answer is None:
            raise CommandFailed(
                "the proof of its ways to the others ended early",
                host=self._host,
                hint=f"clusterctl exec --limit {self._host} -- python3 --version",
                detail=last_words(self._channel)[-2000:] or None,
            )
        with _PARSING:
            return ast.literal_eval(answer)

    def clocks(self, times: int = 3) -> tuple[Clock, float]:
        """How the host's clock stands to ours, and its monotonic clock less ours, in seconds:
        the quickest of some questions, since half its round trip bounds the error."""
        trip, offset, ahead = min(self._clock() for _ in range(times))
        return Clock(offset, trip / 2), ahead

    def _clock(self) -> tuple[float, float, float]:
        """Round trip, and how far its clock and its monotonic clock are ahead."""
        asked, started = time.time(), time.monotonic()
        said, monotonic = self.ask("clock")
        trip = time.monotonic() - started
        return trip, said - asked - trip / 2, monotonic - started - trip / 2

    def close(self) -> None:
        self._channel.close()
