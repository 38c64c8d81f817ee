"""A blob that is arriving on this host: its bytes, its part file, and waiting for more.

A part file resumes from the bytes of an earlier relay, and is renamed when it is complete.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from clusterctl.transfer.reaching import make_directory, open_file

READ = 1 << 20
# Bytes of a piece between two journal entries: a killed relay may lose that many of each piece
NOTED_EVERY = 8 << 20

OURS = re.compile(r"[0-9a-f]{64}(\.part)?(\.pieces)?$")  # Files that relays leave in a cache

BOOT = "/proc/sys/kernel/random/boot_id"
Wait = Callable[[str], None]


class Restarted(Exception):
    """The segment's bytes so far were wrong, and will be fetched again."""


class Unavailable(Exception):
    """This host cannot hold the blob."""


class Segment:
    """A range of bytes with its own digest, fetched from one upstream at a time."""

    def __init__(self, index: int, start: int, size: int, digest: str) -> None:
        self.index, self.start, self.size = index, start, size
        self.digest = digest
        self.have = 0
        self.done = False
        self.busy = False
        self.round = 0  # Number of times its bytes were discarded, so that readers notice

    @property
    def visible(self) -> int:
        """Bytes that may be passed on. The last byte is held back until the digest is verified, so
        that no reader gets a complete but wrong blob."""
        return self.have if self.done else min(self.have, self.size - 1)


class Stored:
    """One blob. `digest` is 64 hexadecimal digits. `pieces`: the digests of every `piece_size`
    bytes, each a segment; without pieces, the whole blob is one segment. Raises ValueError if the
    number of pieces does not fit the size."""

    def __init__(
        self,
        digest: str,
        size: int,
        path: str,
        pieces: Optional[List[str]] = None,
        piece_size: int = 1,
        mode: int = 0o644,
        placed: bool = False,
    ) -> None:
        self.digest, self.size, self.path, self.mode = digest, size, path, mode
        self.placed = placed
        self.segments = [Segment(0, 0, size, digest)]
        if pieces:
            starts = range(0, max(1, size), piece_size)
            if len(starts) != len(pieces):
                raise ValueError("%s: %d pieces for %d bytes" % (digest, len(pieces), size))
            self.segments = [
                Segment(index, start, min(piece_size, size - start), piece)
                for index, (start, piece) in enumerate(zip(starts, pieces))
            ]
        self.piece_size = piece_size
        self.changed = threading.Condition()
        self.complete = False
        self.wanted = False
        self.fault = ""  # Why this host cannot hold it: no space, no permission
        self._file: Optional[int] = None

    @property
    def part(self) -> str:
        return self.path + ".part"

    @property
    def journal(self) -> str:
        return self.path + ".part.pieces"

    @property
    def have(self) -> int:
        return self.size if self.complete else sum(segment.have for segment in self.segments)

    def segment_at(self, position: int) -> Segment:
        return self.segments[position // self.piece_size if len(self.segments) > 1 else 0]

    def open_for_reading(self, segment: Segment, turn: int) -> int:
        """Return a descriptor of the current file. It stays valid when the file is renamed, and
        when wrong bytes are discarded: the next ones are written to a new file.

        Raises Restarted when the bytes of round `turn` were discarded.
        """
        with self.changed:
            if segment.round != turn:
                raise Restarted
            if self._file is not None:
                return os.dup(self._file)
            return open_file(self.path if self.complete else self.part)

    def claim(self, segment: Segment) -> bool:
        """Mark the segment as being fetched; False if it is done, busy or cannot be stored."""
        with self.changed:
            self.wanted = True
            if segment.done or segment.busy or self.fault:
                return False
            segment.busy = True
            return True

    def release(self, segment: Segment) -> None:
        with self.changed:
            segment.busy = False
            self.changed.notify_all()

    def advance(self, segment: Segment, count: int) -> None:
        with self.changed:
            segment.have += count
            self.changed.notify_all()

    def drop(self, segment: Segment) -> None:
        """Discard the segment's wrong bytes."""
        with self.changed:
            segment.have = 0
            segment.done = False
            segment.round += 1
            self.changed.notify_all()

    def verified(self, segment: Segment) -> bool:
        """Mark the segment as verified; return True if all segments are."""
        with self.changed:
            segment.have = segment.size
            segment.done = True
            self.changed.notify_all()
            return all(each.done for each in self.segments)

    def completed(self) -> None:
        """Mark the blob as complete at `path`, and keep that file open: slower hosts still read it
        while the model is moved into place, or replaced and removed."""
        with self.changed:
            with contextlib.suppress(OSError):
                descriptor = open_file(self.path)
                # Leave half of the descriptors for sockets and part files.
                if descriptor < os.sysconf("SC_OPEN_MAX") // 2:
                    self._file = descriptor
                else:
                    os.close(descriptor)
            for segment in self.segments:
                segment.have, segment.done = segment.size, True
            self.complete = True
            self.changed.notify_all()

    def failed(self, fault: str) -> None:
        with self.changed:
            self.fault = fault
            self.changed.notify_all()

    def wait(self, position: int, turn: int, seconds: float) -> int:
        """Return how many bytes can be read at `position`; 0 if none arrived within `seconds`.

        Raises Restarted when the bytes of round `turn` were discarded, Unavailable when this host
        cannot hold the blob.
        """
        segment = self.segment_at(position)

        def is_settled() -> bool:
            arrived = segment.start + segment.visible > position
            return arrived or segment.round != turn or bool(self.fault)

        with self.changed:
            self.changed.wait_for(is_settled, seconds)
            if segment.round != turn:
                raise Restarted
            if self.fault:
                raise Unavailable(self.fault)
            return max(0, segment.start + segment.visible - position)


class PartFile:
    """Writes one blob. The file is locked, so that only one relay of a host writes it at a time.

    Its directory is opened once, and links in it are never followed.
    """

    def __init__(self, blob: Stored) -> None:
        self._blob = blob
        self._opening = threading.Lock()
        self._noting = threading.Lock()
        self._at: Optional[int] = None  # The directory of the file
        self._descriptor: Optional[int] = None
        self._journal: Optional[int] = None
        self._noted: Dict[int, int] = {}
        self._name = os.path.basename(blob.path)

    def open(self, wait: Wait) -> None:
        """Open the part file for writing, and resume from the bytes in it. Raises OSError.

        `wait` is called with the reason about once a second while another relay holds the lock.
        """
        blob = self._blob
        with self._opening:
            if blob.complete or self._descriptor is not None:
                return
            if self._at is None:
                self._at = make_directory(os.path.dirname(blob.path))
            descriptor = self._locked(wait)
            if self._is_there_already(wait):
                self._unlink(".part")
                os.close(descriptor)
                os.close(self._at)
                self._at = None
                blob.completed()
                return
            there = os.fstat(descriptor).st_size
            if len(blob.segments) > 1:
                self._read_journal(there == blob.size)
                os.ftruncate(descriptor, blob.size)
            elif there > blob.size:
                os.ftruncate(descriptor, 0)
            else:
                blob.segments[0].have = there
            self._descriptor = descriptor

    def write(self, position: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._open_descriptor(), data, position)
            data, position = data[count:], position + count

    def hash_of(self, segment: Segment) -> Any:
        """Return a sha256 object over the bytes present of `segment`."""
        return _hash_range(self._open_descriptor(), segment.start, segment.have)

    def note(self, segment: Segment) -> None:
        """Write the segment's progress to the journal if it is done or has changed enough."""
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
        self._unlink(".part")
        self._descriptor = self._locked(wait)
        os.close(before)

    def finish(self) -> None:
        """Rename the complete, verified part file to its final name. Raises OSError."""
        descriptor = self._open_descriptor()
        if self._blob.placed:
            os.fchmod(descriptor, self._blob.mode)
            os.fsync(descriptor)
        with self._blob.changed:
            os.rename(self._name + ".part", self._name, src_dir_fd=self._at, dst_dir_fd=self._at)
            self._blob.completed()
        if self._blob.placed and self._at is not None:
            os.fsync(self._at)  # the rename must survive a crash, too
        with self._noting:
            if self._journal is not None:
                self._unlink(".part.pieces")
            for each in (self._descriptor, self._journal, self._at):
                if each is not None:
                    os.close(each)
            self._descriptor = self._journal = self._at = None

    def _open(self, suffix: str, flags: int) -> int:
        name = self._name + suffix
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._at)

    def _stat(self, suffix: str) -> os.stat_result:
        return os.stat(self._name + suffix, dir_fd=self._at, follow_symlinks=False)

    def _unlink(self, suffix: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name + suffix, dir_fd=self._at)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise OSError("%s is not open" % self._blob.part)
        return self._descriptor

    def _locked(self, wait: Wait) -> int:
        """Open and lock the part file; do it again if the previous holder renamed it meanwhile."""
        while True:
            descriptor = self._open(".part", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(self._stat(".part"), os.fstat(descriptor)):
                        return descriptor
            except BlockingIOError:
                wait("another relay on this host, which writes %s" % self._blob.part)
                time.sleep(1.0)
            os.close(descriptor)

    def _is_there_already(self, wait: Wait) -> bool:
        try:
            found = self._stat("")
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != self._blob.size:
            return False
        wait("the verification of %s, which is already present" % self._blob.path)
        descriptor = self._open("", os.O_RDONLY)
        try:
            return all(
                _hash_range(descriptor, each.start, each.size).hexdigest() == each.digest
                for each in self._blob.segments
            )
        finally:
            os.close(descriptor)

    def _read_journal(self, usable: bool) -> None:
        """Load the segments' state from the journal. Verified ones are trusted only if the machine
        has not rebooted since: it may have crashed before the bytes were on disk."""
        segments = self._blob.segments
        boot, rows = "unknown", []
        with contextlib.suppress(OSError), open(BOOT, encoding="ascii") as file:
            boot = file.read().strip()
        with (
            contextlib.suppress(OSError),
            os.fdopen(
                self._open(".part.pieces", os.O_RDONLY), encoding="ascii", errors="replace"
            ) as file,
        ):
            rows = [line.split() for line in file if usable and line.endswith("\n")]
        same_boot = rows[:1] == [["boot", boot]]
        for row in rows[1:]:
            if len(row) == 3 and row[1].isdigit() and row[2].isdigit():
                index, have = int(row[1]), int(row[2])
                if index < len(segments) and have <= segments[index].size:
                    segments[index].have = have
                    segments[index].done = row[0] == "done" and same_boot
        self._journal = self._open(".part.pieces", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(self._journal, ("boot %s\n" % boot).encode())
        for segment in segments:
            if segment.have:
                self._noted[segment.index] = -NOTED_EVERY
                self.note(segment)


def sweep(folder: str, before: float) -> None:
    """Remove cached blobs last written before `before`, in Unix seconds."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in filter(OURS.match, names):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if os.path.isfile(path) and os.path.getmtime(path) < before:
                os.unlink(path)


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
