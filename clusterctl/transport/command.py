"""A framed command on a wire: the start, the noise before it, the password of sudo."""

from __future__ import annotations

import contextlib
import math
import secrets
import shlex
import string
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed
from clusterctl.transport.base import Closing

# Seconds for the end of stderr to arrive, once a command has ended.
LAST_WORDS = 0.5

# Seconds to start that even a command with a shorter time limit gets.
LEAST_START = 3.0

STDERR_TAIL = 64 * 1024


class NotStarted(Exception):
    """The process ended, or the time did, before the command began. `status` is None then."""

    def __init__(self, status: int | None, output: str, *, prompts: int) -> None:
        super().__init__(output)
        self.status = status
        self.output = output
        self.prompts = prompts


class ErrorOutput:
    """What arrives on stderr, drained by a thread so that the process never blocks on it.

    Text before the mark is kept apart as noise. Each sight of sudo's prompt calls `answer`.
    `keep` bounds what is held, in bytes; None holds everything.
    """

    def __init__(self, wire: Wire, frame: Framed, keep: int | None, answer: Callable[[int], None]):
        self._wire, self._frame, self._keep, self._answer = wire, frame, keep, answer
        self._lock = threading.Lock()
        self._noise: bytes | None = None
        self._data = bytearray()
        self.prompts = 0
        self._thread = threading.Thread(target=self._drain, name="stderr", daemon=True)
        self._thread.start()

    def text(self) -> str:
        with self._lock:
            return self._data.decode(errors="replace")

    def noise(self) -> str:
        """What came before the mark; all of it while there is no mark."""
        with self._lock:
            found = self._data if self._noise is None else self._noise
            text = bytes(found).decode(errors="replace")
        return text.replace(self._frame.prompt.decode(), "").strip()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def to_end(self, quiet: float) -> str:
        size = -1
        while self._thread.is_alive() and len(self._data) != size:
            size = len(self._data)
            self._thread.join(quiet)
        return self.text()

    def _drain(self) -> None:
        while chunk := self._receive():
            with self._lock:
                self._data += chunk
                asked = self._sort() if self._noise is None else 0
                if self._keep is not None and self._noise is not None:
                    del self._data[: -self._keep]
            if asked > self.prompts:
                self.prompts = asked
                self._answer(asked)

    def _receive(self) -> bytes:
        try:
            return self._wire.recv_stderr(65536)
        except OSError:
            return b""

    def _sort(self) -> int:
        """Split noise from output once the mark is there; the number of prompts seen."""
        before, mark, after = bytes(self._data).partition(self._frame.mark)
        if mark:
            self._noise, self._data = before, bytearray(after)
        return before.count(self._frame.prompt)


def start_limit(seconds: float | None) -> float:
    """How long a command may take to begin: who gives it little time, as `status` does, does not
    wait ten times as long for a login shell that hangs."""
    return (
        deadlines.COMMAND_START
        if seconds is None
        else min(deadlines.COMMAND_START, max(LEAST_START, seconds))
    )


class RunningCommand(Closing):
    """A running command as a Channel. Making one waits until it has started.

    Raises NotStarted, and ConnectionFailed when the wire breaks first.
    """

    def __init__(
        self,
        wire: Wire,
        frame: Framed,
        *,
        host: str,
        password: str | None = None,
        keep_stderr: int | None = STDERR_TAIL,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._wire, self._frame, self._host = wire, frame, host
        self._password, self._on_close = password, on_close
        self._closing = threading.Lock()
        self._closed = False
        self._errors = ErrorOutput(wire, frame, keep_stderr, self._answer_sudo)
        try:
            self._pending = self._wait_for_mark()
        except BaseException:
            self.close()
            raise

    def _answer_sudo(self, times_asked: int) -> None:
        """The first prompt gets the password; a second means that it was wrong: hang up."""
        if times_asked > 1 or self._password is None:
            self._wire.close()
            return
        with contextlib.suppress(OSError):
            self._wire.send(self._password.encode() + b"\n")

    def _wait_for_mark(self) -> bytes:
        """Read past the mark; what follows it in the same packet is the command's own."""
        seen, deadline = b"", time.monotonic() + start_limit(self._frame.seconds)
        while self._frame.mark not in seen:
            chunk = self._receive_before(deadline)
            if not chunk:
                raise self._not_started(seen, ended=chunk is not None)
            seen += chunk
        self._wire.settimeout(None)
        return seen.partition(self._frame.mark)[2]

    def _receive_before(self, deadline: float) -> bytes | None:
        """Some bytes, b"" at the end, None when the time is over."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return None
        self._wire.settimeout(remaining)
        try:
            return self._wire.recv(65536)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def _not_started(self, seen: bytes, *, ended: bool) -> Exception:
        status = self._wire.wait(2.0) if ended else None
        self._errors.join(1.0)
        if status == -1 and not self._errors.prompts:
            return self.lost()
        noise = (seen.decode(errors="replace").strip(), self._errors.noise())
        return NotStarted(status, "\n".join(filter(None, noise)), prompts=self._errors.prompts)

    def lost(self) -> ConnectionFailed:
        """The error to raise when `wait` gave -1."""
        return ConnectionFailed(
            f"the connection was lost while `{self._frame.argv[0]}` ran",
            host=self._host,
            hint="run the same clusterctl command again",
        )

    def send(self, data: bytes) -> None:
        try:
            self._wire.send(data)
        except OSError as error:
            raise ConnectionFailed(
                f"`{self._frame.argv[0]}` takes no more input", host=self._host, detail=str(error)
            ) from error

    def recv(self, size: int) -> bytes:
        if self._pending:
            data, self._pending = self._pending[:size], self._pending[size:]
            return data
        return self._wire.recv(size)

    def settimeout(self, seconds: float | None) -> None:
        self._wire.settimeout(seconds)

    def close_stdin(self) -> None:
        self._wire.close_stdin()

    def poll(self, seconds: float) -> int | None:
        """The exit status, None when the command still runs after `seconds`."""
        return self._wire.wait(seconds)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; -1 when the connection was lost. Raises TimeoutError."""
        status = self._wire.wait(timeout)
        if status is None:
            raise TimeoutError(f"`{self._frame.argv[0]}` still runs after {timeout} s")
        # Its last words may still be on their way through the reading thread; a child that it
        # left behind may hold stderr open for ever.
        self._errors.join(LAST_WORDS)
        return status

    def stderr_tail(self) -> str:
        return self._errors.text()

    def whole_stderr(self, quiet: float) -> str:
        """stderr to its end, or until nothing more came for `quiet` seconds."""
        return self._errors.to_end(quiet)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._wire.close()
        self._errors.join(1.0)
        self._on_close()


# Seconds between SIGTERM and SIGKILL for a command that runs past its time.
KILL_AFTER = 5

_START = """\
printf '%s%s\\n' "$1" "$2"; printf '%s%s\\n' "$1" "$2" >&2
limit=$3; shift 3
if [ "$limit" -gt 0 ] && command -v timeout >/dev/null 2>&1
then timeout -k 5 "$limit" "$@"
else (exec "$@")
fi
exit $?"""
# `exit $?` keeps this shell as the parent: it turns death by a signal into 128 + n, which
# sshd would report as an exit-signal that Paramiko 5.1 drops.

_SAFE = frozenset((string.ascii_letters + string.digits + " -_./:,=@%+").encode())
_ESCAPED = [chr(byte) if byte in _SAFE else f"\\0{byte:03o}" for byte in range(256)]


def _token() -> str:
    return secrets.token_hex(12)


@dataclass(frozen=True)
class Framed:
    """`argv` with its mark and, for sudo, the prompt to look for.

    `seconds` is the time limit enforced on the host, None for none. The mark's halves travel
    apart, so that a shell that echoes what it runs (`set -x`) does not write the mark.
    """

    argv: tuple[str, ...]
    seconds: float | None = None
    halves: tuple[str, str] = field(default_factory=lambda: (_token(), _token()))

    @property
    def mark(self) -> bytes:
        return f"{self.halves[0]}{self.halves[1]}\n".encode()

    @property
    def prompt(self) -> bytes:
        return f"[{self.halves[0]} sudo]".encode()

    def plain(self) -> tuple[str, ...]:
        """The argv that starts it as the user who logged in."""
        limit = 0 if self.seconds is None else math.ceil(self.seconds)
        return ("sh", "-c", _START, "clusterctl", *self.halves, str(limit), *self.argv)

    def as_root(self, *, password: bool) -> tuple[str, ...]:
        """The argv that starts it through sudo, which asks on stderr with `prompt`, or never."""
        asking = "-S" if password else "-n"
        return ("sudo", asking, "-p", self.prompt.decode(), "--", *self.plain())


def login_shell_line(argv: Sequence[str]) -> str:
    """One line that any login shell (POSIX, fish, csh) turns into exactly `argv`.

    Single quotes protect everything but the backslash in fish and `!` and newlines in csh, so
    all but plain characters travel as octal escapes for `printf %b`.
    """
    command = f"exec {shlex.join(argv)}"
    escaped = "".join(map(_ESCAPED.__getitem__, command.encode()))
    return f"""exec sh -c 'eval "$(printf %b "$0")"' '{escaped}'"""


class Wire(Protocol):
    """Raw ends of one process. Readers get b"" at the end, OSError means that it is gone."""

    def send(self, data: bytes) -> None:
        """Write all of `data`; raises OSError when nobody reads any more."""

    def recv(self, size: int) -> bytes:
        """stdout; raises TimeoutError after the time set by `settimeout`."""

    def recv_stderr(self, size: int) -> bytes:
        """stderr; waits without limit, until the end or `close`."""

    def settimeout(self, seconds: float | None) -> None: ...

    def close_stdin(self) -> None: ...

    def wait(self, seconds: float | None) -> int | None:
        """The exit status; None when the time is over, -1 when the connection was lost."""

    def close(self) -> None: ...
