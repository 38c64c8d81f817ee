"""The supervisor's side of ray-watch: keeps that process alive, holds its last snapshot, and what
the GCS has against this node.

Workers are watched like the head: a raylet that hangs cannot tell so itself, and the GCS, which
counts it dead, tells nobody who would end it.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import List, Mapping, Optional

from clusterctl.node.backoff import Backoff
from clusterctl.node.children import Child
from clusterctl.node.documents import from_json
from clusterctl.node.ray_watch import Snapshot
from clusterctl.node.timing import Timing


def own_argv() -> List[str]:
    """What runs this very package again: the zip file it came from, or the source tree."""
    origin = Path(__file__).parents[2]
    return [sys.executable, str(origin)] if origin.is_file() else [
        sys.executable, "-m", "clusterctl.node"
    ]  # fmt: skip


class RayView:
    """What the GCS says of Ray's nodes."""

    def __init__(self, argv: List[str], host: str, timing: Timing) -> None:
        """`argv` runs ray-watch, or whatever prints the same lines; `host` is this node's name."""
        self._argv = argv
        self._host = host
        self._timing = timing
        self._child: Optional[Child] = None
        self._backoff = Backoff(timing.ray_backoff_first, timing.ray_backoff_max)
        self._next_start = 0.0
        self._heard = 0.0
        self._answered: Optional[float] = None
        self._unlisted: Optional[float] = None
        self._generation = 0
        self.snapshot: Optional[Snapshot] = None
        # When the GCS said it, in monotonic seconds: the host's clock may be set in between.
        self.taken = 0.0
        self.error = ""

    def tick(self, now: float, ray_up: bool, env: Mapping[str, str]) -> None:
        """Start, restart or end the process. `now` is monotonic."""
        if self._child is None:
            if ray_up and now >= self._next_start:
                self._start(now, env)
        elif not ray_up:
            self.stop()
        elif self._child.exit_status() is not None or self._is_silent(now):
            self._end_child()
            self._next_start = now + self._backoff.failed()

    def fresh(self) -> Optional[Snapshot]:
        """The last snapshot, unless it is too old to prove anything."""
        old = time.monotonic() - self.taken >= self._timing.snapshot_age
        return None if old else self.snapshot

    def unlisted(self, now: float) -> str:
        """That the GCS answers and knows no living node of this name, for a while, and why; or
        nothing."""
        snapshot = self.fresh()
        own = [node for node in snapshot.nodes if node.name == self._host] if snapshot else []
        if snapshot is None or any(node.alive for node in own):
            self._unlisted = None
            return ""
        self._unlisted = now if self._unlisted is None else self._unlisted
        if now - self._unlisted < self._timing.unlisted_limit:
            return ""
        reason = own[-1].death_reason if own else ""
        return f"the GCS counts this node dead: {reason or 'it does not know it'}"

    def unanswered(self, now: float) -> str:
        """That a GCS which answered answers no more, for long; or nothing."""
        if self._answered is None or now - self._answered < self._timing.gcs_silence:
            return ""
        return f"the GCS has not answered for {now - self._answered:.0f} s"

    def stop(self) -> None:
        """End the process; what it said says nothing of the next Ray."""
        self._end_child()
        self._answered = self._unlisted = None

    def _end_child(self) -> None:
        if self._child:
            self._child.kill_all()
        self._child = None
        self._generation += 1
        self.snapshot = None

    def _is_silent(self, now: float) -> bool:
        return now - self._heard > self._timing.watch_silence

    def _start(self, now: float, env: Mapping[str, str]) -> None:
        self._heard = now
        try:
            self._generation += 1
            read = partial(self._read, self._generation)
            self._child = Child(self._argv, {**os.environ, **env}, None, read)
        except OSError as error:
            self.error = str(error)
            self._next_start = now + self._backoff.failed()

    def _read(self, generation: int, line: str) -> None:
        """Runs in the reader's thread; Ray's own warnings come the same way, and the last
        words of a process that was ended may come late."""
        if generation != self._generation or not line.startswith("{"):
            return
        try:
            snapshot = from_json(Snapshot, line)
        except ValueError:
            return
        self._heard = time.monotonic()
        self.error = snapshot.error
        if not snapshot.error:
            self.taken = self._heard - max(0.0, time.time() - snapshot.time)
            self.snapshot = snapshot
            self._answered = self._heard
            self._backoff.succeeded()
