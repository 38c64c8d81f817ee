"""A host that answers commands from a script; a command nobody foresaw is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed
from clusterctl.inventory.model import Host
from clusterctl.transport.base import Channel, Closing, CommandResult

Matcher = Callable[[tuple[str, ...]], bool]


@dataclass(frozen=True)
class Call:
    """One command as it was asked for."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    sudo: bool = False
    timeout: float | None = None


Answer = Callable[[Call], CommandResult]


def starts(*words: str) -> Matcher:
    """Matches an argv that begins with `words`."""
    return lambda argv: argv[: len(words)] == words


def exactly(*words: str) -> Matcher:
    return lambda argv: argv == words


@dataclass
class FakeTransport:
    """A Transport without a host.

    Tell it answers with `on`; the latest matching one counts. `calls` has every command,
    `files` what `put` wrote by path, as (data, mode, sudo). `down` makes every use fail.
    """

    host: Host = field(default_factory=lambda: Host(name="gpu1", address="192.0.2.1"))
    calls: list[Call] = field(default_factory=list)
    files: dict[str, tuple[bytes, int, bool]] = field(default_factory=dict)
    down: ConnectionFailed | None = None
    breaks: int = 0
    closed: bool = False
    _answers: list[tuple[Matcher, Answer]] = field(default_factory=list)

    def on(
        self,
        matcher: Matcher | Sequence[str],
        *,
        stdout: str = "",
        stderr: str = "",
        status: int = 0,
        raises: Exception | None = None,
        answer: Answer | None = None,
    ) -> Self:
        """Answer commands that `matcher` (a predicate, or the argv itself) takes.

        `answer` computes the result from the call; otherwise the fixed one is given.
        """

        def fixed(call: Call) -> CommandResult:
            if raises is not None:
                raise raises
            return CommandResult(call.argv, status, stdout, stderr)

        found = matcher if callable(matcher) else exactly(*matcher)
        self._answers.append((found, answer or fixed))
        return self

    def connect(self) -> None:
        if self.down is not None:
            raise self.down

    def another(self) -> FakeTransport:
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        sudo: bool = False,
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        return self._answer(Call(tuple(argv), stdin, sudo, timeout))

    def put(
        self,
        data: bytes,
        path: str,
        *,
        mode: int = 0o644,
        sudo: bool = False,
        before: str | None = None,
    ) -> None:
        self.connect()
        self.files[path] = (data, mode, sudo)

    def read_file(self, path: str, *, sudo: bool = True) -> bytes | None:
        """Answered like the command ("cat", path); a status other than 0 is a missing file."""
        result = self._answer(Call(("cat", path), sudo=sudo, timeout=deadlines.SMALL_FILE))
        return result.stdout.encode() if result.ok else None

    def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> Channel:
        """A channel that plays the answer to `argv`: its stdout, then the end."""
        return FakeChannel(self._answer(Call(tuple(argv), sudo=sudo)))

    def open_tcp(self, address: str, port: int) -> Channel:
        """Answered like the command ("tcp", address, port)."""
        return FakeChannel(self._answer(Call(("tcp", address, str(port)))))

    def close(self) -> None:
        self.closed = True

    def _answer(self, call: Call) -> CommandResult:
        self.connect()
        self.calls.append(call)
        for matches, answer in reversed(self._answers):
            if matches(call.argv):
                return answer(call)
        raise AssertionError(f"{self.host.name} was asked for {call.argv}, which no test foresaw")


class FakeChannel(Closing):
    """Plays a result; `sent` has what was written to it."""

    def __init__(self, result: CommandResult) -> None:
        self._result = result
        self._rest = result.stdout.encode()
        self.sent = b""
        self.closed = False

    def send(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionFailed("the channel is closed")
        self.sent += data

    def recv(self, size: int) -> bytes:
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def settimeout(self, seconds: float | None) -> None:
        """It never waits."""

    def close_stdin(self) -> None:
        """It reads nothing."""

    def wait(self, timeout: float | None = None) -> int:
        return self._result.status

    def stderr_tail(self) -> str:
        return self._result.stderr

    def close(self) -> None:
        self.closed = True
