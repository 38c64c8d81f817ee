"""How many GPUs the container sees now.

A `systemctl daemon-reload` on the host can take GPUs away from a running container
(nvidia-container-toolkit issue 48); the command that lists them is then the first to say so.
"""

from __future__ import annotations

import subprocess
from typing import List, Optional

from clusterctl.node.documents import GpuListing
from clusterctl.node.timing import Timing

NOT_LOOKED = -1
LONGEST = 200  # Characters of the command's words that are kept


class GpuCount:
    """Runs the command now and then, without ever waiting for it."""

    def __init__(self, listing: GpuListing, timing: Timing) -> None:
        self._listing = listing
        self._timing = timing
        self._process: Optional[subprocess.Popen[str]] = None
        self._asked = 0.0
        self.visible = NOT_LOOKED
        self.said = ""
        """The command's own words, when it shows no GPU."""

    @property
    def at_rest(self) -> bool:
        """The command does not run."""
        return self._process is None

    def tick(self, now: float) -> None:
        """`now` is monotonic."""
        if self._process is not None:
            self._collect(now, self._process)
        elif self._listing.argv and (
            self._asked == 0.0 or now - self._asked > self._timing.gpus_every
        ):
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._asked = now
        try:
            self._process = subprocess.Popen(
                self._listing.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._none(f"{self._listing.argv[0]} cannot be started: {error.strerror}")

    def _collect(self, now: float, process: subprocess.Popen[str]) -> None:
        if process.poll() is not None:
            # A few lines per GPU: they fit into the pipe, so it never blocked on them.
            lines = process.communicate()[0].splitlines()
            self._process = None
            self._count(lines)
        elif now - self._asked > self._timing.gpus_timeout:
            process.kill()
            self._none(f"{self._listing.argv[0]} does not answer")

    def _count(self, lines: List[str]) -> None:
        self.visible = sum(line.startswith(self._listing.begins) for line in lines)
        if self.visible:
            self.said = ""
        elif lines:
            self.said = lines[-1].strip()[:LONGEST]

    def _none(self, said: str) -> None:
        self.visible = 0
        self.said = said
