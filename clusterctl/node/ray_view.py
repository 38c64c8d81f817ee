"""The supervisor's side of ray-watch: keeps that process alive, holds its last snapshot."""

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
    """What Ray looks like from the head. On workers nothing is watched."""

    def __init__(self, argv: List[str], timing: Timing) -> None:
        """`argv` runs ray-watch, or whatever prints the same lines."""
        self._argv = argv
        self._timing = timing
        self._child: Optional[Child] = None
        self._backoff = Backoff(timing.ray_backoff_first, timing.ray_backoff_max)
        self._next_start = 0.0
        self._heard = 0.0
        self._generation = 0
        self.snapshot: Optional[Snapshot] = None
        self.error = ""

    def tick(self, now: float, ray_up: bool, env: Mapping[str, str]) -> None:
        """Start, restart or end the process. `now` is monotonic."""
        if self._child is None:
            if ray_up and now >= self._next_start:
                self._start(now, env)
        elif not ray_up:
            self.stop()
        elif self._child.exit_status() is not None or self._is_silent(now):
            self.stop()
            self._next_start = now + self._backoff.failed()

    def fresh(self) -> Optional[Snapshot]:
        """The last snapshot, unless it is too old to prove anything."""
        snapshot = self.snapshot
        if snapshot and time.time() - snapshot.time < self._timing.snapshot_age:
            return snapshot
        return None

    def stop(self) -> None:
        """End the process; the last snapshot says nothing of the next Ray."""
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
            self.snapshot = snapshot
            self._backoff.succeeded()
