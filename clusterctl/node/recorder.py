"""The recorder: compares readings of this host every 10 s, and writes problems to the journal, with
the times when they began and ended."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from clusterctl.node.documents import BrokenNic, GpuListing
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.probes import PolledCommand
from clusterctl.node.readings import HostReading, conditions, host_reading
from clusterctl.node.timing import Timing

SUBJECT = "host"  # Of the journal's lines; no service has this name

# Conditions that only readings show, and that slow or stop what serves while they last.
_TOLD = ("stopped", "tcp-resent", "memory-low", "gpu-slowed")


class Recorder:
    """Takes readings while `tick` is called."""

    def __init__(
        self, paths: NodePaths, listing: GpuListing, timing: Timing, journal: Journal
    ) -> None:
        self._journal = journal
        self._timing = timing
        self._disks = [str(paths.root), "/tmp", "/dev/shm", str(paths.logs)]  # noqa: S108
        self._columns = listing.columns
        self._query = PolledCommand(listing.query, timing.readings_every, timing.gpus_timeout)
        self._gpus: List[Dict[str, str]] = []
        self._due = 0.0
        self._last: Optional[HostReading] = None
        self._wrong: Dict[Tuple[str, str], str] = {}
        self._broken: List[BrokenNic] = []

    def close(self) -> None:
        """End what reads GPUs."""
        self._query.close()

    def tick(self, now: float, broken: List[BrokenNic]) -> None:
        """Take a reading if it is time. `now`: monotonic seconds. `broken`: NICs that the node
        needs but that carry no traffic, which are known sooner."""
        if broken != self._broken:
            for nic in broken:
                if nic not in self._broken:
                    text = f"{nic.name or 'the NIC'} of {nic.purposes} is {nic.problem}"
                    self._journal.write(SUBJECT, "nic-broken", text)
            if not broken:
                self._journal.write(SUBJECT, "over", "nic-broken")
            self._broken = broken
        ran = self._query.tick(now)
        if ran:
            rows = [line.split(",") for line in ran.lines]
            self._gpus = [
                dict(zip(self._columns, map(str.strip, row)))  # noqa: B905 - Python 3.9
                for row in rows
                if len(row) == len(self._columns)
            ]
        if now >= self._due:
            self._due = now + self._timing.readings_every
            self._take(host_reading(self._disks, self._gpus))

    def lasting(self) -> List[str]:
        """Return what is wrong now, and seen by nobody but the recorder, in sentences."""
        return sorted(text for (kind, _), text in self._wrong.items() if kind in _TOLD)

    def _take(self, reading: HostReading) -> None:
        last, self._last = self._last, reading
        if last is None:
            return
        wrong = conditions(last, reading, self._timing.readings_every, self._wrong)
        for key in wrong.keys() - self._wrong.keys():
            self._journal.write(SUBJECT, key[0], wrong[key])
        for key in self._wrong.keys() - wrong.keys():
            self._journal.write(SUBJECT, "over", " ".join(key).strip())
        self._wrong = wrong
