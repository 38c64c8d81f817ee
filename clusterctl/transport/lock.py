"""Lock of a cluster, one clusterctl at a time: a flock on the head, held by an open channel.

The kernel releases the lock when the process that holds it ends, and that process ends with the
channel. So there are no stale locks, even after SIGKILL (free within a second) or a silent network
failure (free after SILENCE).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

from clusterctl import deadlines
from clusterctl.errors import (
    MALFORMED,
    ClusterctlError,
    ConnectionFailed,
    LockHeld,
    RequirementsNotMet,
    StepFailed,
)
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import config_dir, declared_dir
from clusterctl.transport.base import Channel, Closing, Transport, lines
from clusterctl.transport.head_copy import hand_out
from clusterctl.transport.local import account

# Root's, unlike /run/lock, where any user may make a file first. Nobody else may open the file: to
# read it is enough to lock it.
DIRECTORY = "/run/clusterctl"
# Seconds between bytes sent to the head, to keep the lock.
BEAT = 15.0
# Seconds without such a byte after which the head releases the lock.
SILENCE = 60
# Seconds for which the head's confirmation is cached: the lock is lost only after SILENCE, and
# bootstraps of many hosts check it before each of thousands of changes.
_TRUSTED = 10.0
_NO_FLOCK = 3
_HELD_BY_ANOTHER = 4

_HELD_MEANWHILE = 5

_HOLD = """\
command -v flock >/dev/null || exit 3
umask 022; mkdir -p "${1%/*}"; umask 077; exec 9<>"$1" || exit 1
flock -n 9 || { cat "$1"; exit 4; }
[ -z "$4" ] || [ "$(cat "$1")" = "$2" ] || { cat "$1"; exit 5; }
printf '%s\\n' "$2" >"$1"; echo held
beat() {
  exec 9>&-
  if command -v timeout >/dev/null
  then timeout "$1" dd bs=1 count=1 2>/dev/null
  else dd bs=1 count=1 2>/dev/null
  fi
}
while byte=$(beat "$3"); [ "$byte" = . ]; do :; done
[ "$byte" != q ] || : >"$1"
"""
# `read -t` is not POSIX, and dash lacks it: `timeout dd` reads one byte or gives up. The reader
# must not have descriptor 9 open, or it would still hold the lock when this shell is killed. A
# holder whose connection broke stays written there: it may take the lock again (with $4) if nobody
# else has held it since.

_NOT_MINE, _NOT_BEFORE = 3, 4
_IF_MINE = """\
[ "$(cat "$1" 2>/dev/null)" = "$2" ] && ! flock -n 8 8<"$1" || { cat "$1"; exit 3; }
"""
_ANY = "any"  # In place of the digest that a file must have
REPLACE = f"""\
set -u; umask 077
lock=$1 mine=$2 copy=$3 file=$4 before=$5 size=$6
[ "$before" != {_ANY} ] || mkdir -p "${{file%/*}}"
if [ "$size" != gone ]; then
  new=$(mktemp "$file.XXXXXX") || exit 1
  trap 'rm -f "$new"' EXIT
  cat >"$new" && [ "$(wc -c <"$new")" -eq "$size" ] || exit 1
fi
if [ -n "$lock" ]; then
  set -- "$lock" "$mine"
  {_IF_MINE.strip()}
fi
now=none
[ ! -e "$file" ] || now=$(sha256sum <"$file" | cut -c1-64)
[ "$before" = {_ANY} ] || [ "$now" = "$before" ] || exit 4
if [ "$size" = gone ]; then rm -f "$file" "${{copy:-$file}}"; exit; fi
if [ -n "$copy" ]; then
  mkdir -p "${{copy%/*}}" && cp "$new" "$copy.new" && mv -f "$copy.new" "$copy" || exit 1
fi
mv -f "$new" "$file"
"""
# The data arrives first and the checks run last: no client can be suspended between the checks
# and the change.


@dataclass(frozen=True)
class LockHolder:
    """Holder of a lock. `since` is ISO 8601 with its zone."""

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
    """Describe this process as a holder. `command` is shown to others: no secrets."""
    now = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
    return LockHolder(account(), socket.gethostname(), os.getpid(), now, command)


def _holder(answer: str) -> LockHolder | None:
    """Parse the holder from a lock's file; None if it is not valid."""
    try:
        return LockHolder(**json.loads(answer))
    except MALFORMED:
        return None


class ClusterLock(Closing):
    """A context manager that holds the lock of a cluster.

    Entering raises LockHeld, naming the holder; RequirementsNotMet when the head has no flock(1);
    ConnectionFailed.
    """

    def __init__(
        self,
        head: Transport,
        cluster: str,
        command: str,
        *,
        name: str = "",
        keepers: Sequence[Transport] = (),
        directory: str = DIRECTORY,
        beat: float = BEAT,
        silence: int = SILENCE,
    ) -> None:
        """`name`: of the lock, where it is not the cluster's. `keepers`: hosts that get a copy of
        the head's documents if they are changed."""
        self._head, self._cluster, self._command = head, cluster, command
        self._path = f"{directory}/{name or cluster}.lock"
        self._keepers, self._changed = tuple(keepers), False
        self._beat, self._silence = beat, silence
        self._mine = this_process(command).to_json()
        self._channel: Channel | None = None
        self._gone: ConnectionFailed | None = None
        """Set when the lock was lost: the same error for all threads, so that it is shown once."""
        self._confirmed = 0.0
        """Time of the last confirmation by the wall clock, which continues during a suspend."""
        self._released = threading.Event()
        self._taking = threading.Lock()
        self._answer = ""  # To the last attempt to take it: `held`, or who holds it

    @staticmethod
    def of(
        inventory: Inventory,
        transports: Mapping[str, Transport],
        command: str,
        *,
        name: str = "",
    ) -> ClusterLock:
        """Return the lock of the cluster, with those keepers that `transports` has."""
        keepers = [transports[one.name] for one in inventory.keepers if one.name in transports]
        head = transports[inventory.head.name]
        return ClusterLock(head, inventory.cluster, command, name=name, keepers=keepers)

    def ensure_held(self) -> None:
        """Check with the head that the lock is held. Raises ConnectionFailed if it was lost, for
        example during a suspend, which this process notices only afterwards."""
        if self._channel is None:
            raise ConnectionFailed("the lock was never taken", host=self._head.host.name)
        if self._gone:
            raise self._gone
        if self._broke():
            self._take_again()
        if 0 <= time.time() - self._confirmed < _TRUSTED:
            return
        argv = ["sh", "-c", _IF_MINE, "clusterctl-held", self._path, self._mine]
        result = self._head.run(argv, sudo=True, timeout=deadlines.LOCK)
        if result.ok:
            self._confirmed = time.time()
        elif self._broke():
            self._take_again()
        else:
            raise self._lost(result.stdout)

    def _broke(self) -> bool:
        """Whether the lock's connection broke. Raises the error of a lock that was lost while the
        connection stayed."""
        assert self._channel  # noqa: S101 - it was taken
        try:
            status = self._channel.wait(0)
        except TimeoutError:
            return False
        if status != -1:
            raise self._lost("")
        return True

    def _take_again(self) -> None:
        """Take the lock over a new connection. Raises the error of a lost lock if someone else has
        held it meanwhile."""
        with self._taking:
            until = time.monotonic() + deadlines.LOCK
            while self._broke():
                assert self._channel  # noqa: S101 - it was taken
                self._channel.close()
                try:
                    self._hold(again=True)
                except LockHeld:
                    # The head may not have noticed yet that the connection broke.
                    if self._answer != self._mine or time.monotonic() > until:
                        raise self._lost(self._answer) from None
                    time.sleep(0.2)

    def replace(
        self,
        path: str,
        data: bytes | None,
        *,
        before: bytes | None,
        on: Transport | None = None,
    ) -> None:
        """Write `data` to `path` on the head (or `on` another host) with mode 0600, or remove the
        file (None): compare-and-swap, only if it still contains `before` (None: it does not exist)
        and this run still holds the lock.

        The head keeps a copy of each document (`declared_dir`). On the head all of it is one round
        trip, atomic; for another host, the head is asked first, and keeps the copy afterwards.
        Raises ConnectionFailed when the lock was lost, StepFailed when the file has changed or
        cannot be written.
        """
        documents, copies = config_dir(self._cluster), declared_dir(self._cluster)
        copy = path.replace(documents, copies, 1) if path.startswith(f"{documents}/") else ""
        self._changed = self._changed or bool(copy)
        known = "none" if before is None else hashlib.sha256(before).hexdigest()
        if on is None or on.host.name == self._head.host.name:
            self._write(self._head, path, data, known, lock=self._path, copy=copy)
            return
        self.ensure_held()
        self._write(on, path, data, known)
        if copy:
            self._write(self._head, copy, data, _ANY, lock=self._path)

    def _write(
        self,
        host: Transport,
        path: str,
        data: bytes | None,
        known: str,
        *,
        lock: str = "",
        copy: str = "",
    ) -> None:
        size = "gone" if data is None else str(len(data))
        words = (lock, self._mine, copy, path, known, size)
        argv = ["sh", "-c", REPLACE, "clusterctl-write", *words]
        result = host.run(argv, stdin=data or b"", sudo=True)
        if result.status == _NOT_MINE:
            raise self._lost(result.stdout)
        if result.status == _NOT_BEFORE:
            raise StepFailed(
                f"{path} was changed by someone else meanwhile, and was left as it is",
                host=host.host.name,
                hint="run the same clusterctl command again: it starts from the current state",
            )
        if not result.ok:
            raise StepFailed(
                f"{path} cannot be {'removed' if data is None else 'written'}",
                host=host.host.name,
                detail=result.last_lines() or None,
            )

    def __enter__(self) -> Self:
        self._hold()
        return self

    def _hold(self, *, again: bool = False) -> None:
        words = (self._path, self._mine, str(self._silence), "again" if again else "")
        argv = ["sh", "-c", _HOLD, "clusterctl-lock", *words]
        channel = self._head.open_channel(argv, sudo=True)
        with contextlib.ExitStack() as unless_held:
            unless_held.callback(channel.close)
            channel.settimeout(deadlines.LOCK)
            try:
                answer = next(lines(channel), "")
                status = 0 if answer == "held" else channel.wait(deadlines.LOCK)
            except TimeoutError:
                raise self._failed("the head did not answer", channel) from None
            self._answer = answer
            if answer != "held":
                raise self._refused(status, answer, channel)
            unless_held.pop_all()
        self._channel = channel
        threading.Thread(target=self._keep, args=(channel,), name="lock", daemon=True).start()

    def close(self) -> None:
        if self._changed and self._keepers and self._gone is None:
            hand_out(self._head, self._cluster, self._keepers)
        self._released.set()
        if self._channel is not None:
            with contextlib.suppress(ConnectionFailed):
                self._channel.send(b"q")
            self._channel.close_stdin()
            with contextlib.suppress(TimeoutError):
                self._channel.wait(5)
            self._channel.close()

    def _refused(self, status: int, answer: str, channel: Channel) -> ClusterctlError:
        """Return the error for the locking script, which ended with `status` instead of taking the
        lock. `answer`: the content of the lock's file."""
        if status in (_HELD_BY_ANOTHER, _HELD_MEANWHILE):
            # A holder without a record is about to write it, or is another program.
            holder = _holder(answer) or "a run that has not recorded its name yet"
            return LockHeld(
                f"cluster {self._cluster} is locked by {holder}",
                host=self._head.host.name,
                hint="wait for it to end, which releases the lock",
            )
        if status == _NO_FLOCK:
            return RequirementsNotMet(
                "flock is not installed",
                host=self._head.host.name,
                hint="apt-get install util-linux",
            )
        return self._failed(f"{self._path} could not be opened", channel)

    def _lost(self, answer: str) -> ConnectionFailed:
        """Record and return the error. `answer`: the current content of the lock's file."""
        other = _holder(answer)
        self._gone = ConnectionFailed(
            f"the lock of cluster {self._cluster} was lost: the connection to the head broke, "
            f"or stayed silent for {self._silence} s"
            + (f"; {other} holds it now" if other else ""),
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
