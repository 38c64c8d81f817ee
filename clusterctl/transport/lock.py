"""One clusterctl at a time per cluster: a flock on the head, held by an open channel.

The kernel frees the lock with the process that holds it, and that process ends with the
channel, so that there are no stale locks: not after SIGKILL (free within a second), not after
a silent network cut (free after SILENCE).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed, LockHeld, RequirementsNotMet, StepFailed
from clusterctl.transport.base import Channel, Closing, Transport, lines
from clusterctl.transport.local import account

DIRECTORY = "/run/lock"
# Seconds between signs of life to the head.
BEAT = 15.0
# Seconds without one after which the head frees the lock.
SILENCE = 60
# Seconds for which the head's word that the lock is held counts: silence loses it after SILENCE
# only, and bootstraps of many hosts ask before each of thousands of changes.
_TRUSTED = 10.0
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

_NOT_MINE, _NOT_BEFORE = 3, 4
_IF_MINE = """\
[ "$(cat "$1" 2>/dev/null)" = "$2" ] && ! flock -n 8 8<"$1" || { cat "$1"; exit 3; }
"""
_REPLACE = f"""\
set -u; umask 077
lock=$1 mine=$2 file=$3 before=$4 size=$5
if [ "$size" != gone ]; then
  new=$(mktemp "$file.XXXXXX") || exit 1
  trap 'rm -f "$new"' EXIT
  cat >"$new" && [ "$(wc -c <"$new")" -eq "$size" ] || exit 1
fi
set -- "$lock" "$mine"
{_IF_MINE}\
now=none
[ ! -e "$file" ] || now=$(sha256sum <"$file" | cut -c1-64)
[ "$now" = "$before" ] || exit 4
if [ "$size" = gone ]; then rm -f "$file"; else mv -f "$new" "$file"; fi
"""
# What is sent arrives first and is looked at last: between that and the change no client can
# fall asleep.


@dataclass(frozen=True)
class LockHolder:
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


def this_process(command: str) -> LockHolder:
    """This process as a holder. `command` is shown to others: no secrets in it."""
    now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    return LockHolder(account(), socket.gethostname(), os.getpid(), now, command)


def _holder(answer: str) -> LockHolder | None:
    """The holder that a lock's file names."""
    try:
        return LockHolder(**json.loads(answer))
    except (ValueError, TypeError):
        return None


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
        self._mine = this_process(command).to_json()
        self._channel: Channel | None = None
        self._gone: ConnectionFailed | None = None
        """That it was lost: the same error for all who work under it, so that it is told once."""
        self._confirmed = 0.0
        """When the head last said so, by the clock on the wall: that one goes on in a sleep."""
        self._released = threading.Event()

    def ensure_held(self) -> None:
        """Asks the head. Raises ConnectionFailed when the lock was lost, as after a sleep: this
        side learns of that only after it went on."""
        if self._channel is None:
            raise ConnectionFailed("the lock was never taken", host=self._head.host.name)
        if self._gone:
            raise self._gone
        with contextlib.suppress(TimeoutError):
            self._channel.wait(0)
            raise self._lost("")
        if 0 <= time.time() - self._confirmed < _TRUSTED:
            return
        argv = ["sh", "-c", _IF_MINE, "clusterctl-held", self._path, self._mine]
        result = self._head.run(argv, sudo=True, timeout=deadlines.LOCK)
        if not result.ok:
            raise self._lost(result.stdout)
        self._confirmed = time.time()

    def replace(self, path: str, data: bytes | None, *, before: bytes | None) -> None:
        """Make the file `path` on the head hold `data` with mode 0600, or remove it (None), if it
        still holds `before` (None: there is no such file) and this run still holds the lock.

        One round trip, atomic. Raises ConnectionFailed when the lock was lost, StepFailed when
        the file is another by now or cannot be written.
        """
        size = "gone" if data is None else str(len(data))
        known = "none" if before is None else hashlib.sha256(before).hexdigest()
        argv = ["sh", "-c", _REPLACE, "clusterctl-write", self._path, self._mine, path, known, size]
        result = self._head.run(argv, stdin=data or b"", sudo=True)
        if result.status == _NOT_MINE:
            raise self._lost(result.stdout)
        if result.status == _NOT_BEFORE:
            raise StepFailed(
                f"{path} was changed by someone else meanwhile, and is left as it is",
                host=self._head.host.name,
                hint="run the same clusterctl command again: it looks at what is there now",
            )
        if not result.ok:
            raise StepFailed(
                f"{path} cannot be {'removed' if data is None else 'written'}",
                host=self._head.host.name,
                detail=result.last_lines() or None,
            )

    def __enter__(self) -> Self:
        argv = ["sh", "-c", _HOLD, "clusterctl-lock", self._path, self._mine, str(self._silence)]
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
        channel.settimeout(deadlines.LOCK)
        try:
            answer = next(lines(channel), "")
            if answer == "held":
                return
            status = channel.wait(deadlines.LOCK)
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
        # One without a name is about to write it, or is another program.
        holder = _holder(answer) or "someone who has not given a name yet"
        return LockHeld(
            f"cluster {self._cluster} is being worked on by {holder}",
            host=self._head.host.name,
            hint="wait for it to end; the lock ends with it",
        )

    def _lost(self, answer: str) -> ConnectionFailed:
        """`answer`: what the lock's file says now."""
        other = _holder(answer)
        self._gone = ConnectionFailed(
            f"the lock of cluster {self._cluster} was lost: the connection to the head broke, "
            f"or stayed silent for {self._silence} s" + (f"; it is {other}'s now" if other else ""),
            host=self._head.host.name,
            hint="run the same clusterctl command again",
        )
        return self._gone

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
