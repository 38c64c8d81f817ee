"""Run a command framed by a mark: detect its start, skip output before it, answer sudo's prompt."""

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

# Seconds to wait for the end of stderr after a command has ended.
LAST_WORDS = 0.5

# Seconds to start that even a command with a shorter time limit gets.
LEAST_START = 3.0

STDERR_TAIL = 64 * 1024


class NotStarted(Exception):
    """The process ended, or the time limit passed (`status` None), before the command began."""

    def __init__(self, status: int | None, output: str, *, prompts: int) -> None:
        super().__init__(output)
        self.status = status
        self.output = output
        self.prompts = prompts


class ErrorOutput:
    """Reads stderr in a thread, so that the process never blocks on it.

    Text before the mark is kept apart as noise. `answer` is called for each prompt of sudo. `keep`
    is the number of bytes kept; None keeps all.
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
        """Text before the mark; all text while there is no mark."""
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
        asked = 0
        while True:
            try:
                chunk = self._wire.recv_stderr(65536)
            except OSError:
                return
            if not chunk:
                return
            with self._lock:
                self._data += chunk
                if self._noise is None:
                    before, mark, after = bytes(self._data).partition(self._frame.mark)
                    asked = before.count(self._frame.prompt)
                    if mark:
                        self._noise, self._data = before, bytearray(after)
                if self._keep is not None and self._noise is not None:
                    del self._data[: -self._keep]
            if asked > self.prompts:
                self.prompts = asked
                self._answer(asked)


class RunningCommand(Closing):
    """A running command as a Channel. The constructor waits until the command has started.

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
        """Send the password at the first prompt; hang up at a second one, since it was wrong."""
        if times_asked > 1 or self._password is None:
            self._wire.close()
            return
        with contextlib.suppress(OSError):
            self._wire.send(self._password.encode() + b"\n")

    def _wait_for_mark(self) -> bytes:
        """Read past the mark; return the rest of its packet, which is the command's own output."""
        limit = deadlines.COMMAND_START
        if self._frame.seconds is not None:
            # A short time limit, such as of `status`, also counts for a login shell that hangs.
            limit = min(limit, max(LEAST_START, self._frame.seconds))
        seen, deadline = b"", time.monotonic() + limit
        while self._frame.mark not in seen:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._not_started(seen, None)
            self._wire.settimeout(remaining)
            try:
                chunk = self._wire.recv(65536)
            except TimeoutError:
                raise self._not_started(seen, None) from None
            except OSError:
                chunk = b""
            if not chunk:
                raise self._not_started(seen, self._wire.wait(2.0))
            seen += chunk
        self._wire.settimeout(None)
        return seen.partition(self._frame.mark)[2]

    def _not_started(self, seen: bytes, status: int | None) -> Exception:
        self._errors.join(1.0)
        if status == -1 and not self._errors.prompts:
            return self.lost()
        noise = (seen.decode(errors="replace").strip(), self._errors.noise())
        return NotStarted(status, "\n".join(filter(None, noise)), prompts=self._errors.prompts)

    def lost(self) -> ConnectionFailed:
        """Return the error to raise when `wait` returned -1."""
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
                f"`{self._frame.argv[0]}` stopped reading its input",
                host=self._host,
                detail=str(error),
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
        """Return the exit status; None when the command still runs after `seconds`."""
        return self._wire.wait(seconds)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; -1 when the connection was lost. Raises TimeoutError."""
        status = self._wire.wait(timeout)
        if status is None:
            raise TimeoutError(f"`{self._frame.argv[0]}` is still running after {timeout} s")
        # The reading thread may still process the end of stderr; a background child of the command
        # may hold it open for ever.
        self._errors.join(LAST_WORDS)
        return status

    def stderr_tail(self) -> str:
        return self._errors.text()

    def whole_stderr(self, quiet: float) -> str:
        """Return stderr up to its end, or until no byte came for `quiet` seconds."""
        return self._errors.to_end(quiet)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._wire.close()
        self._errors.join(1.0)
        self._on_close()


# Seconds between SIGTERM and SIGKILL for a command that exceeds its time limit.
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

    `seconds`: time limit that the host enforces; None: no limit. The mark is sent in two halves, so
    that a shell that echoes its commands (`set -x`) does not print the mark.
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
        """The argv to run it as the login user."""
        limit = 0 if self.seconds is None else math.ceil(self.seconds)
        return ("sh", "-c", _START, "clusterctl", *self.halves, str(limit), *self.argv)

    def as_root(self, *, password: bool) -> tuple[str, ...]:
        """The argv to run it through sudo, which prompts on stderr with `prompt`, or never."""
        asking = "-S" if password else "-n"
        return ("sudo", asking, "-p", self.prompt.decode(), "--", *self.plain())


def login_shell_line(argv: Sequence[str]) -> str:
    """Return one line that any login shell (POSIX, fish, csh) turns into exactly `argv`.

    Single quotes protect everything but the backslash in fish and `!` and newlines in csh, so all
    but plain characters are sent as octal escapes for `printf %b`.
    """
    command = f"exec {shlex.join(argv)}"
    escaped = "".join(map(_ESCAPED.__getitem__, command.encode()))
    return f"""exec sh -c 'eval "$(printf %b "$0")"' '{escaped}'"""


class Wire(Protocol):
    """Raw streams of one process. Reads return b"" at the end; OSError means that it is gone."""

    def send(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError when the reading side is closed."""

    def recv(self, size: int) -> bytes:
        """Read stdout. Raises TimeoutError after the time set by `settimeout`."""

    def recv_stderr(self, size: int) -> bytes:
        """Read stderr; blocks without a time limit, until its end or `close`."""

    def settimeout(self, seconds: float | None) -> None: ...

    def close_stdin(self) -> None: ...

    def wait(self, seconds: float | None) -> int | None:
        """Return the exit status; None after `seconds`, -1 when the connection was lost."""

    def close(self) -> None: ...
