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

NOISE = 2**20  # Bytes before the mark that are kept, the last ones


class NotStarted(Exception):
    """The process ended, or timed out (`status` None), before the command started."""

    def __init__(self, status: int | None, output: str, *, prompts: int) -> None:
        super().__init__(output)
        self.status = status
        self.output = output
        self.prompts = prompts


class RunningCommand(Closing):
    """A running command as a Channel. The constructor waits until the command has started.

    A thread reads stderr, so that the process never blocks on it, and answers sudo's prompt. Text
    before the mark is kept separately as noise. `keep_stderr`: how many of the last bytes are kept.

    Raises NotStarted, and ConnectionFailed when the wire breaks first.
    """

    def __init__(
        self,
        wire: Wire,
        frame: Framed,
        *,
        host: str,
        password: str | None = None,
        keep_stderr: int = STDERR_TAIL,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._wire, self._frame, self._host = wire, frame, host
        self._password, self._keep, self._on_close = password, keep_stderr, on_close
        # Reentrant: the garbage collector closes abandoned connections to an engine in any thread,
        # also in the reader of one of them, while that holds its lock.
        self._lock = threading.RLock()
        self._closed = False
        self._noise: bytes | None = None
        self._stderr = bytearray()
        self._left_out = 0
        self._prompts = 0
        self._reader = threading.Thread(target=self._read_stderr, name="stderr", daemon=True)
        self._reader.start()
        try:
            self._pending = self._wait_for_mark()
        except BaseException:
            self.close()
            raise

    def _read_stderr(self) -> None:
        prompts = 0
        while True:
            try:
                chunk = self._wire.recv_stderr(65536)
            except OSError:
                return
            if not chunk:
                return
            with self._lock:
                self._stderr += chunk
                if self._noise is None:
                    before, mark, after = bytes(self._stderr).partition(self._frame.mark)
                    prompts = before.count(self._frame.prompt)
                    if mark:
                        self._noise, self._stderr = before, bytearray(after)
                        self._left_out = 0
                most = NOISE if self._noise is None else self._keep
                if (more := len(self._stderr) - most) > 0:
                    del self._stderr[:more]
                    self._left_out += more
            if prompts <= self._prompts:
                continue
            self._prompts = prompts
            if prompts > 1 or self._password is None:
                self._wire.close()  # sudo asks again: the password was wrong
            else:
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
            seen = (seen + chunk)[-NOISE:]
        self._wire.settimeout(None)
        return seen.partition(self._frame.mark)[2]

    def _not_started(self, seen: bytes, status: int | None) -> Exception:
        self._reader.join(1.0)
        if status == -1 and not self._prompts:
            return self.lost()
        with self._lock:
            noise = bytes(self._stderr if self._noise is None else self._noise)
        texts = (seen, noise.replace(self._frame.prompt, b""))
        output = "\n".join(filter(None, (t.decode(errors="replace").strip() for t in texts)))
        return NotStarted(status, output, prompts=self._prompts)

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
        self._reader.join(LAST_WORDS)
        return status

    def stderr_tail(self) -> str:
        with self._lock:
            return self._stderr.decode(errors="replace")

    def whole_stderr(self, quiet: float) -> str:
        """Return what was kept of stderr until its end, or until no byte arrived for `quiet`
        seconds, after a line that says how much was omitted."""
        size = -1
        while self._reader.is_alive() and len(self._stderr) != size:
            size = len(self._stderr)
            self._reader.join(quiet)
        if self._left_out:
            return f"[{self._left_out} bytes of stderr omitted]\n{self.stderr_tail()}"
        return self.stderr_tail()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wire.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(1.0)
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

    Single quotes protect everything except the backslash in fish, and `!` and newlines in csh, so
    all but plain characters are sent as octal escapes for `printf %b`.
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
