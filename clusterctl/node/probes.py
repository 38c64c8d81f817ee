"""The supervisor's checks of its own node: visible GPUs, NICs, and installed versions."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Callable, List, Optional, Sequence

from clusterctl.node.documents import BrokenNic, GpuListing, NodeDocument
from clusterctl.node.nics import Interface, broken_nics, interfaces
from clusterctl.node.ray_watch import VERSION_LABELS
from clusterctl.node.timing import Timing

NOT_LOOKED = -1
LONGEST = 200  # Characters of the command's last line that are kept

FIRST_WITH_PLAIN_LABELS = (2, 49)  # Older `ray start` takes JSON for --labels, or lacks the option


@dataclass(frozen=True)
class RanCommand:
    """What a PolledCommand printed, or why it printed nothing."""

    lines: List[str]
    error: str = ""


class PolledCommand:
    """Runs a command periodically without ever blocking on it."""

    def __init__(self, argv: List[str], every: float, timeout: float) -> None:
        """An empty `argv` is never run. One that prints more than a pipe holds (64 KiB) times
        out."""
        self._argv = argv
        self._every = every
        self._timeout = timeout
        self._process: Optional[subprocess.Popen[str]] = None
        self._asked = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether the command is not running now."""
        return self._process is None

    def close(self) -> None:
        """End the command if it runs."""
        process, self._process = self._process, None
        if process:
            process.kill()
            if process.stdout:
                process.stdout.close()
            with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it alive
                process.wait(1)

    def tick(self, now: float) -> Optional[RanCommand]:
        """Start the command or collect its output, once. `now`: monotonic seconds."""
        process = self._process
        if process is not None and process.poll() is not None:
            self._process = None
            return RanCommand(process.communicate()[0].splitlines())
        if process is not None:
            if now - self._asked > self._timeout:
                process.kill()
                return RanCommand([], f"{self._argv[0]} does not answer")
        elif self._argv and (self._asked == 0.0 or now - self._asked > self._every):
            self._asked = now
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                return RanCommand([], f"{self._argv[0]} cannot be started: {error.strerror}")
        return None


class GpuCount:
    """Counts the GPUs visible in the container, without blocking on the listing command.

    A `systemctl daemon-reload` on the host can take GPUs away from a running container
    (nvidia-container-toolkit issue 48), and this command is the first to show it.
    """

    def __init__(self, listing: GpuListing, timing: Timing) -> None:
        self._begins = listing.begins
        self._command = PolledCommand(listing.argv, timing.gpus_every, timing.gpus_timeout)
        self.visible = NOT_LOOKED
        self.said = ""  # The command's last line or error, if it lists no GPU

    @property
    def at_rest(self) -> bool:
        return self._command.at_rest

    def tick(self, now: float) -> None:
        """Start the command or collect its output. `now`: monotonic seconds."""
        ran = self._command.tick(now)
        if ran is None:
            return
        self.visible = sum(line.startswith(self._begins) for line in ran.lines)
        if self.visible:
            self.said = ""
        elif ran.error or ran.lines:
            self.said = ran.error or ran.lines[-1].strip()[:LONGEST]


class Links:
    """Checks whether the NICs that the node's environment selects can carry traffic.

    As long as Ray uses another interface, no other check shows a pulled cable or a renamed NIC.
    """

    def __init__(
        self, timing: Timing, look: Callable[[], Sequence[Interface]] = interfaces
    ) -> None:
        self._timing = timing
        self._look = look
        self._due = 0.0
        self.broken: List[BrokenNic] = []

    def tick(self, now: float, document: NodeDocument) -> None:
        """Recheck the NICs if it is time. `now`: monotonic seconds."""
        if now < self._due:
            return
        self._due = now + self._timing.nics_every
        try:
            found = self._look()
        except OSError:
            return  # try again next time
        self.broken = broken_nics(document.env, document.node_ip, found)


@dataclass(frozen=True)
class Versions:
    """Versions installed in the image. Empty for a package that is not installed."""

    ray: str
    python: str
    vllm: str


def installed_versions() -> Versions:
    """Read the versions from package metadata: importing Ray would take a second."""

    def of(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return ""

    return Versions(of("ray"), platform.python_version(), of("vllm"))


def version_labels(versions: Versions) -> List[str]:
    """Return the labels of `ray start` that show this node's versions to the head."""
    release = tuple(int(part) for part in versions.ray.split(".")[:2] if part.isdigit())
    if release < FIRST_WITH_PLAIN_LABELS:
        return []
    pairs = []
    for key, value in zip(VERSION_LABELS, (versions.ray, versions.python)):  # noqa: B905 - Python 3.9
        # Labels may hold letters, digits, dots, dashes and underscores, at most 63 of them.
        clean = "".join(c if c.isalnum() or c in ".-_" else "-" for c in value)[:63]
        pairs.append(f"{key}={clean}")
    return ["--labels=" + ",".join(pairs)]
