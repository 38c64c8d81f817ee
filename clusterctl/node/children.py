"""A child process with all its descendants, its output in a rotated log.

A child leads a session of its own. Ray puts some of its processes into groups of their own,
so a signal to the process group would miss them; none of them leaves the session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Callable, Deque, List, Mapping, Optional, Sequence

# Bytes after which NAME.log is moved to NAME.log.1; the older one is dropped.
LOG_LIMIT = 50 * 2**20

_TAIL_LINES = 40

_KILL_ROUNDS = 20
# Seconds. More than one round, since a process may fork between the look and the signal.
_KILL_PAUSE = 0.05


class Child:
    """A running child. Its log is read by one thread, which calls `on_line` for each line."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Optional[Path],
        on_line: Callable[[str], None],
    ) -> None:
        """Raises OSError when the program cannot be started."""
        self._process = subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started = time.monotonic()
        self._tail: Deque[str] = deque(maxlen=_TAIL_LINES)
        self._on_line = on_line
        self._reader = threading.Thread(
            target=self._read, args=(_piped(self._process), log), daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> Optional[int]:
        """None while the leader runs; negative is the signal that ended it."""
        return self._process.poll()

    def tail(self) -> List[str]:
        """The last lines it wrote."""
        return list(self._tail)

    def settle(self, timeout: float = 1.0) -> None:
        """Let the reader take in what an ended child still had in its pipe."""
        self._reader.join(timeout)

    def terminate(self) -> None:
        """SIGTERM to the leader alone: it knows in which order its own children end."""
        if self.exit_status() is None:
            self._process.terminate()

    def kill_all(self) -> None:
        """SIGKILL to the leader and to all that is left of its session. A process that hangs
        in a driver survives it for now: at most a second is spent on waiting."""
        if self.exit_status() is None:
            self._process.kill()
        for _ in range(_KILL_ROUNDS):
            members = session_members(self.pid)
            for pid in members:
                _kill(pid)
            if self.exit_status() is not None and not members:
                return
            time.sleep(_KILL_PAUSE)

    def gone(self) -> bool:
        """Whether the leader and its whole session ended."""
        return self.exit_status() is not None and not session_members(self.pid)

    def _read(self, pipe: IO[bytes], log: Optional[Path]) -> None:
        with pipe, RotatedLog(log or Path(os.devnull)) as file:
            for raw in pipe:
                file.write(raw)
                line = raw.decode("utf-8", "replace").rstrip()
                self._tail.append(line)
                self._on_line(line)


class RotatedLog:
    """Bytes appended to a file that is moved aside when it grew; writing never raises."""

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self._path = path
        self._limit = limit
        self._file: Optional[IO[bytes]] = None

    def __enter__(self) -> RotatedLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def write(self, data: bytes) -> None:
        try:
            self._rotate()
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            self._file.write(data)
        except OSError:
            # A full disk must not block the pipe, and with it the program that writes there.
            return

    def _rotate(self) -> None:
        if self._file and self._file.tell() > self._limit:
            self._file.close()
            self._file = None
            self._path.replace(self._path.with_name(self._path.name + ".1"))


def session_members(session: int) -> List[int]:
    """The pids of that session that have not ended (zombies have)."""
    names = os.listdir("/proc")  # noqa: PTH208 - names are all that is needed
    return [int(name) for name in names if name.isdigit() and _lives_in(name, session)]


def _lives_in(pid: str, session: int) -> bool:
    try:
        stat = Path("/proc", pid, "stat").read_text("utf-8", "replace")
    except OSError:
        return False
    # The name in parentheses may hold spaces and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    state, found = fields[0], int(fields[3])
    return found == session and state not in "ZX"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _piped(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdout is None:
        raise AssertionError("stdout is a pipe")
    return process.stdout
