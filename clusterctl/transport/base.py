"""What the rest of clusterctl may ask of a host: run, put, open a channel. Nothing about SSH.

A transport is bound to one host and keeps one connection. It is safe to use from several
threads. At most four commands run at once, the fifth waits: sshd allows ten sessions on a
connection by default (MaxSessions), and less on hardened hosts. TCP channels do not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from clusterctl import deadlines
from clusterctl.errors import CommandFailed
from clusterctl.inventory.model import Host

# In place of the sha256 of a file: that there is none.
ABSENT = "absent"


@dataclass(frozen=True)
class CommandResult:
    """What a command did. A status other than 0 is a result, not an exception."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.status == 0

    def last_lines(self, count: int = 20) -> str:
        """The end of stderr, or of stdout when stderr is empty."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-count:])


class Channel(Protocol):
    """A running remote command: bytes both ways until either side closes."""

    def send(self, data: bytes) -> None:
        """Write all of `data` to the command's stdin; raises ConnectionFailed when it is gone."""

    def recv(self, size: int) -> bytes:
        """At most `size` bytes of its stdout, b"" at its end; raises TimeoutError after
        the time set by `settimeout`."""

    def settimeout(self, seconds: float | None) -> None: ...

    def close_stdin(self) -> None:
        """Send end of file; stdout stays open."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once the command ended; -1 when the connection was lost."""

    def stderr_tail(self) -> str:
        """The last 64 KiB of what the command wrote to stderr so far."""

    def close(self) -> None:
        """Hang up; the remote command sees end of file on stdin and SIGHUP or SIGPIPE."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def last_words(channel: Channel) -> str:
    """The end of stderr of a command whose output has ended; it comes another way than that, and
    may come later."""
    with suppress(TimeoutError):
        channel.wait(deadlines.COMMAND_END)
    return channel.stderr_tail().strip()


LONGEST_LINE = 64 * 2**20  # bytes


def lines(channel: Channel) -> Iterator[str]:
    """The channel's stdout line by line, without the newline, until its end. Raises CommandFailed
    for a line that does not end."""
    pending = b""
    while chunk := channel.recv(65536):
        *complete, pending = (pending + chunk).split(b"\n")
        for line in complete:
            yield line.decode(errors="replace")
        if len(pending) > LONGEST_LINE:
            raise CommandFailed(f"it writes a line of more than {LONGEST_LINE >> 20} MiB")
    if pending:
        yield pending.decode(errors="replace")


class Transport(Protocol):
    """One host, as seen by the rest of the program."""

    @property
    def host(self) -> Host: ...

    def connect(self) -> None:
        """Connect now rather than at the first use. Raises ConnectionFailed."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        sudo: bool = False,
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        """Run `argv` there and wait for its end.

        The time limit is enforced on the host too. `sudo` asks for root: a no-op for the
        root user, `sudo -n`, or `sudo -S` with the password the user gave.

        What the command leaves in the background does not hold `run` up. Output that start-up
        files of the login shell print is not part of the result.

        Raises ConnectionFailed (or a subclass), CommandTimedOut, and for `sudo`
        RequirementsNotMet or AuthenticationRejected.
        """

    def put(
        self,
        data: bytes,
        path: str,
        *,
        mode: int = 0o644,
        sudo: bool = False,
        before: str | None = None,
    ) -> None:
        """Make `path` hold `data` with `mode`, atomically; its directory must exist.

        `before`: sha256 (hex) of what the file must hold now, or ABSENT; nothing is written where
        it holds anything else. Raises CommandFailed when the host refuses.
        """

    def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> Channel:
        """Start `argv` there and talk to it, without a time limit. Raises what `run` does."""

    def open_tcp(self, address: str, port: int) -> Channel:
        """A TCP connection made from the host to `address:port`, carried by this connection."""

    def close(self) -> None: ...


class Closing(ABC):
    """A thing with a `close`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
