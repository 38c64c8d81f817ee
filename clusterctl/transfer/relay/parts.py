"""Part file of a blob: resume an earlier relay's bytes, write, and rename when complete."""

import contextlib
import fcntl
import hashlib
import os
import re
import threading
import time
from typing import Any, Callable, Dict, Optional

from clusterctl.transfer.relay.stored import Segment, Stored

READ = 1 << 20
# Bytes of a piece between two journal entries: a killed relay may lose as many of each
NOTED_EVERY = 8 << 20

OURS = re.compile(r"[0-9a-f]{64}(\.part)?(\.pieces)?$")  # Files that relays leave in a cache

BOOT = "/proc/sys/kernel/random/boot_id"
Wait = Callable[[str], None]


class PartFile:
    """Writes one blob. The file is locked: only one relay of a host writes it at a time."""

    def __init__(self, blob: Stored) -> None:
        self._blob = blob
        self._opening = threading.Lock()
        self._noting = threading.Lock()
        self._descriptor: Optional[int] = None
        self._journal: Optional[int] = None
        self._noted: Dict[int, int] = {}

    def open(self, wait: Wait) -> None:
        """Open the part file for writing and resume from the bytes already in it. Raises OSError.

        `wait` is called with the reason about once a second while another relay holds the lock.
        """
        with self._opening:
            if self._blob.complete or self._descriptor is not None:
                return
            os.makedirs(os.path.dirname(self._blob.path), mode=0o755, exist_ok=True)
            descriptor = self._locked(wait)
            if self._is_there_already(wait):
                _unlink(self._blob.part)
                os.close(descriptor)
                self._blob.completed()
                return
            self._take_over(descriptor)
            self._descriptor = descriptor

    def write(self, position: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._open_descriptor(), data, position)
            data, position = data[count:], position + count

    def hash_of(self, segment: Segment) -> Any:
        """Return a sha256 object over the bytes present of `segment`."""
        return _hash_range(self._open_descriptor(), segment.start, segment.have)

    def note(self, segment: Segment) -> None:
        """Write the segment's progress to the journal, if it changed enough or is done."""
        with self._noting:
            before = self._noted.get(segment.index, 0)
            worth = segment.done or not before <= segment.have < before + NOTED_EVERY
            if self._journal is not None and worth:
                state = "done" if segment.done else "have"
                os.write(self._journal, f"{state} {segment.index} {segment.have}\n".encode())
                self._noted[segment.index] = segment.have

    def forget(self, segment: Segment, wait: Wait) -> None:
        """Discard the segment's bytes. Without a journal, replace the file; readers keep theirs."""
        if self._journal is not None:
            self.note(segment)
            return
        before = self._open_descriptor()
        _unlink(self._blob.part)
        self._descriptor = self._locked(wait)
        os.close(before)

    def finish(self) -> None:
        """Rename the complete, verified part file to its final name. Raises OSError."""
        descriptor = self._open_descriptor()
        if self._blob.placed:
            os.fchmod(descriptor, self._blob.mode)
            os.fsync(descriptor)
        with self._blob.changed:
            os.rename(self._blob.part, self._blob.path)
            self._blob.completed()
        if self._blob.placed:
            # The rename must survive a crash, too.
            directory = os.open(
                os.path.dirname(self._blob.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        with self._noting:
            for each in (self._descriptor, self._journal):
                if each is not None:
                    os.close(each)
            if self._journal is not None:
                _unlink(self._blob.journal)
            self._descriptor = self._journal = None

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise OSError("%s is not open" % self._blob.part)
        return self._descriptor

    def _locked(self, wait: Wait) -> int:
        """Open and lock the part file, again if the previous holder renamed it meanwhile."""
        while True:
            descriptor = os.open(self._blob.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_file(descriptor, self._blob.part):
                    return descriptor
            except BlockingIOError:
                wait("another relay on this host, which writes %s" % self._blob.part)
                time.sleep(1.0)
            os.close(descriptor)

    def _is_there_already(self, wait: Wait) -> bool:
        path, size = self._blob.path, self._blob.size
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            return False
        wait("the check of %s, which is here already" % path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return all(
                _hash_range(descriptor, each.start, each.size).hexdigest() == each.digest
                for each in self._blob.segments
            )
        finally:
            os.close(descriptor)

    def _take_over(self, descriptor: int) -> None:
        if len(self._blob.segments) == 1:
            there = os.fstat(descriptor).st_size
            if there > self._blob.size:
                os.ftruncate(descriptor, 0)
                there = 0
            self._blob.segments[0].have = there
            return
        self._read_journal(os.fstat(descriptor).st_size == self._blob.size)
        os.ftruncate(descriptor, self._blob.size)

    def _read_journal(self, usable: bool) -> None:
        """Take over the state of segments. Verified ones are trusted only if the machine has not
        rebooted since: it may have crashed before the bytes were on disk."""
        boot = _boot()
        rows = _rows(self._blob.journal) if usable else []
        same_boot = bool(rows) and rows[0] == ["boot", boot]
        for segment, done in _last_states(rows[1:], self._blob).values():
            segment.done = done and same_boot
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._journal = os.open(self._blob.journal, flags, 0o600)
        os.write(self._journal, ("boot %s\n" % boot).encode())
        for segment in self._blob.segments:
            if segment.have:
                self._noted[segment.index] = -NOTED_EVERY
                self.note(segment)


def sweep(folder: str, before: float) -> None:
    """Remove cached blobs that were last written before `before`, in seconds since 1970."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in filter(OURS.match, names):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if os.path.isfile(path) and os.path.getmtime(path) < before:
                os.unlink(path)


def _last_states(rows: Any, blob: Stored) -> Dict[int, Any]:
    """Set `have` of the segments in `rows`; return (segment, verified) by index."""
    found: Dict[int, Any] = {}
    for row in rows:
        if len(row) != 3 or not (row[1].isdigit() and row[2].isdigit()):
            continue
        index, have = int(row[1]), int(row[2])
        if index < len(blob.segments) and have <= blob.segments[index].size:
            blob.segments[index].have = have
            found[index] = (blob.segments[index], row[0] == "done")
    return found


def _rows(path: str) -> Any:
    try:
        with open(path, encoding="ascii", errors="replace") as journal:
            return [line.split() for line in journal if line.endswith("\n")]
    except OSError:
        return []


def _boot() -> str:
    try:
        with open(BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def _hash_range(descriptor: int, start: int, size: int) -> Any:
    found = hashlib.sha256()
    end = start + size
    while start < end:
        data = os.pread(descriptor, min(READ, end - start), start)
        if not data:
            break
        found.update(data)
        start += len(data)
    return found


def _is_file(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
