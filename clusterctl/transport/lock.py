"""One clusterctl at a time per cluster: a flock on the head, held by an open channel.

The kernel frees the lock with the process that holds it, and that process ends with the
channel, so that there are no stale locks: not after SIGKILL (free within a second), not after
a silent network cut (free after SILENCE).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

from clusterctl.errors import ConnectionFailed, LockHeld, RequirementsNotMet, StepFailed
from clusterctl.transport.account import account
from clusterctl.transport.base import Channel, Transport, lines
from clusterctl.transport.closing import Closing

DIRECTORY = "/run/lock"
BEAT = 15.0
"""Seconds between signs of life to the head."""
SILENCE = 60
"""Seconds without one after which the head frees the lock."""
_ANSWER_LIMIT = 30.0
_NO_FLOCK = 3
_HELD_BY_ANOTHER = 4

_HOLD = """\
command -v flock >/dev/null || exit 3
umask 022; exec 9<>"$1" || exit 1
flock -n 9 || { cat "$1"; exit 4; }
printf '%s\\n' "$2" >"$1"; echo held
beat() {
  exec 9>&-
  if command -v timeout >/dev/null
  then timeout "$1" dd bs=1 count=1 2>/dev/null
  else dd bs=1 count=1 2>/dev/null
  fi
}
while [ -n "$(beat "$3")" ]; do :; done
: >"$1"
"""
# `read -t` is not POSIX, and dash has none: `timeout dd` reads one byte or gives up. What reads
# must not have descriptor 9 open, or it would go on holding the lock when this shell is killed.


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. `since` is ISO 8601 with its zone."""

    user: str
    machine: str
    pid: int
    since: str
    command: str

    def __str__(self) -> str:
        return f"{self.user}@{self.machine} (pid {self.pid}, since {self.since}): {self.command}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def this_process(command: str) -> Holder:
    """This process as a holder. `command` is shown to others: no secrets in it."""
    now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    return Holder(account(), socket.gethostname(), os.getpid(), now, command)


class ClusterLock(Closing):
    """A context manager that holds the lock of a cluster.

    Entering raises LockHeld, naming the holder; RequirementsNotMet when the head has no
    flock(1); ConnectionFailed.
    """

    def __init__(
        self,
        head: Transport,
        cluster: str,
        command: str,
        *,
        directory: str = DIRECTORY,
        beat: float = BEAT,
        silence: int = SILENCE,
    ) -> None:
        self._head, self._cluster, self._command = head, cluster, command
        self._path = f"{directory}/clusterctl-{cluster}.lock"
        self._beat, self._silence = beat, silence
        self._channel: Channel | None = None
        self._released = threading.Event()

    def ensure_held(self) -> None:
        """Raises ConnectionFailed when the lock was lost meanwhile, as after a sleep."""
        if self._channel is None:
            raise ConnectionFailed("the lock was never taken", host=self._head.host.name)
        with contextlib.suppress(TimeoutError):
            self._channel.wait(0)
            raise ConnectionFailed(
                f"the lock of cluster {self._cluster} was lost: the connection to the head broke, "
                f"or stayed silent for {self._silence} s",
                host=self._head.host.name,
                hint="run the same clusterctl command again",
            )

    def __enter__(self) -> Self:
        mine = this_process(self._command).to_json()
        argv = ["sh", "-c", _HOLD, "clusterctl-lock", self._path, mine, str(self._silence)]
        channel = self._head.open_channel(argv, sudo=True)
        try:
            self._await_grant(channel)
        except BaseException:
            channel.close()
            raise
        self._channel = channel
        threading.Thread(target=self._keep, args=(channel,), name="lock", daemon=True).start()
        return self

    def close(self) -> None:
        self._released.set()
        if self._channel is not None:
            self._channel.close_stdin()
            with contextlib.suppress(TimeoutError):
                self._channel.wait(5)
            self._channel.close()

    def _await_grant(self, channel: Channel) -> None:
        channel.settimeout(_ANSWER_LIMIT)
        try:
            answer = next(lines(channel), "")
            if answer == "held":
                return
            status = channel.wait(_ANSWER_LIMIT)
        except TimeoutError:
            raise self._failed("the head did not answer", channel) from None
        if status == _HELD_BY_ANOTHER:
            raise self._held(answer)
        if status == _NO_FLOCK:
            raise RequirementsNotMet(
                "flock is not installed",
                host=self._head.host.name,
                hint="apt-get install util-linux",
            )
        raise self._failed(f"{self._path} could not be opened", channel)

    def _held(self, answer: str) -> LockHeld:
        try:
            holder = str(Holder(**json.loads(answer)))
        except (ValueError, TypeError):  # it is about to write its name, or is another program
            holder = "someone who has not given a name yet"
        return LockHeld(
            f"cluster {self._cluster} is being worked on by {holder}",
            host=self._head.host.name,
            hint="wait for it to end; the lock ends with it",
        )

    def _failed(self, cause: str, channel: Channel) -> StepFailed:
        return StepFailed(
            f"the lock of cluster {self._cluster} could not be taken: {cause}",
            host=self._head.host.name,
            detail=channel.stderr_tail() or None,
        )

    def _keep(self, channel: Channel) -> None:
        while not self._released.wait(self._beat):
            try:
                channel.send(b".")
            except ConnectionFailed:
                return
