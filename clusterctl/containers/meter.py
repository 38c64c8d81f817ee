"""Report the progress and rate of a stream of bytes, at most once a second."""

from __future__ import annotations

import time

from clusterctl.containers.driver import Say
from clusterctl.units import GIB, MIB


class Meter:
    """Counts bytes. `total`: expected number of bytes, None if unknown."""

    def __init__(self, say: Say, total: int | None) -> None:
        self._say, self._total = say, total
        self._started = self._told = time.monotonic()
        self.bytes = 0

    def reached(self, count: int) -> None:
        """Set the number of bytes so far to `count`."""
        self.bytes = count
        now = time.monotonic()
        if now - self._told >= 1.0:
            self._told = now
            self._say(self.text())

    def text(self) -> str:
        """Format the progress: `512 of about 2600 MiB, 110 MiB/s`."""
        seconds = max(time.monotonic() - self._started, 1e-3)
        of = f" of about {self._total / MIB:.0f}" if self._total else ""
        return f"{self.bytes / MIB:.0f}{of} MiB, {self.bytes / MIB / seconds:.0f} MiB/s"


def gib(count: int) -> str:
    """Format bytes: `1.2 GiB`."""
    return f"{count / GIB:.1f} GiB"
