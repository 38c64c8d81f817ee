"""State of a blob on this host while it arrives: the bytes present, and waiting for more."""

import contextlib
import os
import threading
from typing import List, Optional

WHOLE = 0


class Segment:
    """A range of bytes with a digest of its own, fetched from one upstream at a time."""

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
        that no reader gets a complete blob that is wrong."""
        return self.have if self.done else min(self.have, self.size - 1)


def segments_of(digest: str, size: int, pieces: List[str], piece_size: int) -> List[Segment]:
    """Return one segment per piece; a single one if there are no pieces. Raises ValueError."""
    if not pieces:
        return [Segment(0, 0, size, digest)]
    starts = range(0, max(1, size), piece_size)
    if len(starts) != len(pieces):
        raise ValueError("%s: %d pieces for %d bytes" % (digest, len(pieces), size))
    return [
        Segment(index, start, min(piece_size, size - start), piece)
        for index, (start, piece) in enumerate(zip(starts, pieces))
    ]


class Stored:
    """One blob. `digest` is 64 hexadecimal digits."""

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
        self.segments = segments_of(digest, size, pieces or [], piece_size)
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
        return self.segments[position // self.piece_size if len(self.segments) > 1 else WHOLE]

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
            return os.open(self.path if self.complete else self.part, os.O_RDONLY | os.O_CLOEXEC)

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
        """Discard the segment's bytes, which were wrong."""
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
        when the model is moved into place, or replaced and removed."""
        with self.changed:
            with contextlib.suppress(OSError):
                self._file = _kept_open(self.path)
            for segment in self.segments:
                segment.have, segment.done = segment.size, True
            self.complete = True
            self.changed.notify_all()

    def failed(self, fault: str) -> None:
        with self.changed:
            self.fault = fault
            self.changed.notify_all()

    def wait(self, position: int, turn: int, seconds: float) -> int:
        """Return the bytes that can be read at `position`; 0 when none came within `seconds`.

        Raises Restarted when the bytes of round `turn` were discarded, Unavailable when this host
        cannot hold the blob.
        """
        segment = self.segment_at(position)
        with self.changed:
            self.changed.wait_for(lambda: self._settled(segment, position, turn), seconds)
            if segment.round != turn:
                raise Restarted
            if self.fault:
                raise Unavailable(self.fault)
            return max(0, segment.start + segment.visible - position)

    def _settled(self, segment: Segment, position: int, turn: int) -> bool:
        arrived = segment.start + segment.visible > position
        return arrived or segment.round != turn or bool(self.fault)


def _kept_open(path: str) -> Optional[int]:
    """Open the file; None if so many are open that other work would soon lack descriptors."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if descriptor < os.sysconf("SC_OPEN_MAX") // 2:  # the lowest free number is used
        return descriptor
    os.close(descriptor)
    return None


class Restarted(Exception):
    """The bytes of the segment read so far were wrong; they will be fetched again."""


class Unavailable(Exception):
    """This host cannot hold the blob."""
