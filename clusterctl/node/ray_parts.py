"""The processes that Ray on a node consists of, and which of them are gone.

`ray start --block` takes the end of its own processes by SIGTERM, or with status 0, for a wish of
`ray stop`, and goes on without them (Ray 2.60): so does a raylet whose agent was ended that way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, FrozenSet

from clusterctl.node.children import session_members

# Each part's name, and how a word of its command line ends: the agents change theirs. Without one
# of these a node is of no use, as it is not for want of Ray's monitor, log monitor or dashboard.
VITAL = {
    "gcs_server": ("/gcs_server",),
    "raylet": ("/raylet",),
    "dashboard agent": ("ray::DashboardAgent", "dashboard/agent.py"),
    "runtime_env agent": ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
}


class RayParts:
    """The vital parts of one `ray start`, by the session it leads."""

    def __init__(self, session: int, every: float) -> None:
        """`every`: seconds between two looks."""
        self._session = session
        self._every = every
        self._next = 0.0
        self._seen: Dict[str, int] = {}
        self._missing: FrozenSet[str] = frozenset()

    def gone(self, now: float) -> str:
        """Which parts there were and are no more, at two looks in a row; or nothing."""
        if now < self._next:
            return ""
        self._next = now + self._every
        before = self._missing
        self.look()
        lost = sorted(before & self._missing)
        return ", ".join(f"{name} (pid {self._seen[name]})" for name in lost)

    def look(self) -> None:
        """Note which parts there are, and which are missing of those there were."""
        found = _parts(self._session)
        self._missing = frozenset(self._seen.keys() - found.keys())
        self._seen.update(found)


def _parts(session: int) -> Dict[str, int]:
    """The pid of each vital part that lives."""
    found: Dict[str, int] = {}
    for pid in session_members(session):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")[:4]
        except OSError:
            continue  # it ended meanwhile
        for name, ends in VITAL.items():
            if any(word.rstrip().endswith(ends) for word in words):
                found.setdefault(name, pid)
    return found
