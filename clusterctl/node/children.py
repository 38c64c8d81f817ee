"""A child process with all its descendants, and its output in a rotated log.

A child leads its own session. Ray puts some of its processes into separate process groups, which a
signal to the child's group would miss, but none of them leaves the session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Callable, Deque, List, Mapping, Optional, Sequence

from clusterctl.node.files import append_to

# Bytes. A larger NAME.log is renamed to NAME.log.1, replacing the previous one.
LOG_LIMIT = 50 * 2**20

_TAIL_LINES = 40

# Kill in several rounds: a process may fork between the listing and the signal.
_KILL_ROUNDS = 20
_KILL_PAUSE = 0.05  # Seconds


class Child:
    """A running child. One thread reads its output, and calls `on_line` for each line."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Optional[Path],
        on_line: Callable[[str], None],
        descriptors: Sequence[int] = (),
        process: Optional[subprocess.Popen[bytes]] = None,
    ) -> None:
        """Raise OSError if the program cannot be started. `descriptors`: that it inherits.
        `process`: one that runs it already, of a session of its own, with a pipe for its output."""
        self._process = process or subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=descriptors,
        )
        self.started = time.monotonic()
        self._tail: Deque[str] = deque(maxlen=_TAIL_LINES)
        self._on_line = on_line
        assert self._process.stdout  # noqa: S101 - a pipe
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout, log), daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> Optional[int]:
        """Return None while the leader runs; a negative status is the signal that ended it."""
        return self._process.poll()

    def tail(self) -> List[str]:
        """Return the last lines that the child wrote."""
        return list(self._tail)

    def drain(self, timeout: float = 1.0) -> None:
        """Wait at most `timeout` s until the rest of an ended child's output is read."""
        self._reader.join(timeout)

    def terminate(self) -> None:
        """Send SIGTERM to the leader only: it ends its children in the right order."""
        if self.exit_status() is None:
            self._process.terminate()

    def reload(self) -> None:
        """Send SIGUSR2 to the leader: HAProxy then reads its configuration again."""
        if self.exit_status() is None:
            self._process.send_signal(signal.SIGUSR2)

    def finish(self) -> None:
        """Send SIGUSR1 to the leader: HAProxy then takes no new connections, and ends with the last
        request."""
        if self.exit_status() is None:
            self._process.send_signal(signal.SIGUSR1)

    def kill_all(self) -> None:
        """Send SIGKILL to the leader and to every remaining process of its session.

        Waits for them to end for at most a second; a process that hangs in a driver may remain.
        """
        if self.exit_status() is None:
            self._process.kill()
        for _ in range(_KILL_ROUNDS):
            members = session_members(self.pid)
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.exit_status() is not None and not members:
                return
            time.sleep(_KILL_PAUSE)

    def gone(self) -> bool:
        """Return whether the leader and its whole session have ended."""
        return self.exit_status() is not None and not session_members(self.pid)

    def _read(self, pipe: IO[bytes], log: Optional[Path]) -> None:
        with pipe, RotatedLog(log or Path(os.devnull)) as file:
            for raw in pipe:
                file.write(raw)
                line = raw.decode("utf-8", "replace").rstrip()
                self._tail.append(line)
                self._on_line(line)


class RotatedLog:
    """A log file that is renamed to NAME.1 when it grows too large. Writing never raises."""

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
            if self._file and self._file.tell() > self._limit:
                self._file.close()
                self._file = None
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            if self._file is None:
                self._file = append_to(self._path)
            self._file.write(data)
        except OSError:
            # Drop the line if the disk is full: the pipe's writer must not be blocked.
            return


def is_alive(pid: int) -> bool:
    """Return whether a process is there that is no zombie."""
    return _runs(Path("/proc", str(pid)))


def has_threads(pid: int) -> bool:
    """Return whether a thread of a process is left. A killed process is a zombie at once, while its
    last thread gives memory back: seconds if much of it is pinned."""
    try:
        return any(_runs(thread) for thread in Path("/proc", str(pid), "task").iterdir())
    except OSError:
        return False


def _runs(entry: Path) -> bool:
    """Return whether a process or thread, by its directory in /proc, is there and no zombie."""
    try:
        stat = (entry / "stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def session_members(session: int) -> List[int]:
    """Return the pids of a session's processes, without zombies."""
    members = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text("utf-8", "replace")
        except OSError:
            continue
        # The command name in parentheses may itself contain spaces and parentheses.
        fields = stat.rpartition(")")[2].split()
        if int(fields[3]) == session and fields[0] not in "ZX":
            members.append(int(name))
    return members
