"""Interface to a host: run a command, put a file, open a channel. Independent of SSH.

A transport is bound to one host and keeps one connection. It is safe to use from several
threads. At most four commands run at once, the fifth waits: sshd allows ten sessions on a
connection by default (MaxSessions), and less on hardened hosts. TCP channels do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from clusterctl import deadlines
from clusterctl.errors import CommandFailed
from clusterctl.inventory.model import Host

# In place of a file's sha256: the file must not exist.
ABSENT = "absent"


@dataclass(frozen=True)
class CommandResult:
    """Result of a command. A status other than 0 is a result, not an exception."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.status == 0

    def last_lines(self, count: int = 20) -> str:
        """The last lines of stderr, or of stdout when stderr is empty."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-count:])

    def output(self, doing: str, host: str) -> str:
        """Return stdout. Raises CommandFailed for a status other than 0, with the last lines.
        `doing`: the work, for the error."""
        if not self.ok:
            lines = self.last_lines()
            why = lines.splitlines()[-1] if lines else f"status {self.status}"
            raise CommandFailed(f"{doing} failed: {why}", host=host, detail=lines)
        return self.stdout


class Closing(Protocol):
    """A context manager that calls `close` on exit."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Channel(Closing, Protocol):
    """A running remote command: bytes in both directions until either side closes."""

    def send(self, data: bytes) -> None:
        """Write all of `data` to the command's stdin. Raises ConnectionFailed when it is closed."""

    def recv(self, size: int) -> bytes:
        """Read at most `size` bytes of stdout, b"" at its end. Raises TimeoutError after the time
        set by `settimeout`."""

    def settimeout(self, seconds: float | None) -> None: ...

    def close_stdin(self) -> None:
        """Send end of file; stdout stays open."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command ends, and return its exit status; -1 if the connection is lost."""

    def stderr_tail(self) -> str:
        """The last 64 KiB that the command has written to stderr so far."""

    def close(self) -> None:
        """Hang up: the remote command gets end of file on stdin, and SIGHUP or SIGPIPE."""


def last_words(channel: Channel) -> str:
    """Return the end of stderr, for a command whose stdout has ended. Waits for its exit, since
    stderr may arrive later than stdout."""
    with suppress(TimeoutError):
        channel.wait(deadlines.COMMAND_END)
    return channel.stderr_tail().strip()


LONGEST_LINE = 64 * 2**20  # bytes


def lines(channel: Channel) -> Iterator[str]:
    """Yield the channel's stdout line by line, without newlines. Raises CommandFailed for a line
    longer than LONGEST_LINE."""
    pending = bytearray()  # Joined only at a newline: a long line arrives in many chunks
    while chunk := channel.recv(65536):
        complete, newline, rest = chunk.rpartition(b"\n")
        if newline:
            for line in (pending + complete).split(b"\n"):
                yield line.decode(errors="replace")
            pending = bytearray()
        pending += rest
        if len(pending) > LONGEST_LINE:
            raise CommandFailed(f"it wrote a line longer than {LONGEST_LINE >> 20} MiB")
    if pending:
        yield pending.decode(errors="replace")


class Transport(Protocol):
    """One host: run commands, write files, open channels."""

    @property
    def host(self) -> Host: ...

    @property
    def breaks(self) -> int:
        """How often the connection to the host broke. The next use reconnects."""

    def connect(self) -> None:
        """Connect now instead of at first use. Raises ConnectionFailed."""

    def another(self) -> Transport:
        """Return a second transport to the host, with its own connection, which the caller must
        close."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        sudo: bool = False,
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        """Run `argv` on the host, and wait until it ends.

        The host enforces `timeout` (seconds), too. `sudo` runs as root: directly for the root user,
        else through `sudo -n`, or `sudo -S` with the user's password.

        Background processes of the command do not delay the result. Output of the login shell's
        start-up files is not included.

        Raises ConnectionFailed (or a subclass), CommandTimedOut, and for `sudo` RequirementsNotMet
        or AuthenticationRejected.
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
        """Write `data` to `path` with `mode`, atomically; its directory must exist.

        `before` (compare-and-swap): sha256 (hex) that the file must currently have, or ABSENT;
        otherwise nothing is written. Raises CommandFailed when the file cannot be written.
        """

    def read_file(self, path: str, *, sudo: bool = True) -> bytes | None:
        """Return the content of a small text file, or None if it does not exist.

        Raises what `run` raises, and CommandFailed when the file cannot be read, is a link, or is
        larger than `host_files.LARGEST_FILE`. A pipe without a writer reads as empty.
        """

    def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> Channel:
        """Start `argv` on the host; return its channel. No time limit. Raises what `run` raises."""

    def open_tcp(self, address: str, port: int) -> Channel:
        """Open a TCP connection from the host to `address:port`, through this connection."""

    def close(self) -> None: ...
