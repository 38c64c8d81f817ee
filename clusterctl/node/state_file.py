"""state.json: written whole, at every change and at least every few seconds."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Optional

from clusterctl.node.documents import NodeState, to_json


class StateFile:
    def __init__(self, path: Path, every: float) -> None:
        """`every`: seconds after which an unchanged state is written again, so that its time
        shows that the supervisor lives."""
        self._path = path
        self._every = every
        self._last: Optional[NodeState] = None
        self._written = 0.0  # By the clock that nobody sets: the host's may go back an hour

    def write(self, state: NodeState) -> None:
        """Readers see the old or the new file, never half of one. It lies in memory; where even
        that is full, the time in the old file tells."""
        now = time.monotonic()
        if self._last and now - self._written < self._every and _same(self._last, state):
            return
        self._last, self._written = state, now
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.write_text(to_json(state), "utf-8")
            os.replace(fresh, self._path)  # noqa: PTH105 - atomic, also over an existing file
        except OSError:
            return


def _same(last: NodeState, state: NodeState) -> bool:
    """But for its times."""
    return dataclasses.replace(state, time=last.time, nodes_time=last.nodes_time) == last
