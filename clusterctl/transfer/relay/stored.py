"""A blob on this host while it arrives: which bytes are there, and who waits for more."""

import contextlib
import os
import threading
from typing import List, Optional

WHOLE = 0


class Segment:
    """A run of bytes that comes from one upstream and has a digest of its own."""

    def __init__(self, index: int, start: int, size: int, digest: str) -> None:
        self.index, self.start, self.size = index, start, size
        self.digest = digest
        self.have = 0
        self.done = False
        self.busy = False
        self.round = 0  # Counts how often its bytes were thrown away, so that readers notice

    @property
    def visible(self) -> int:
        """Bytes that may be passed on. The last byte waits for the digest, so that nobody gets
        a whole blob that is wrong."""
        return self.have if self.done else min(self.have, self.size - 1)


def segments_of(digest: str, size: int, pieces: List[str], piece_size: int) -> List[Segment]:
    """One per piece, or one in all."""
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
        """A descriptor of the file as it is now; it stays good when the file gets its name, and
        when wrong bytes are thrown away: those come again in a file of their own.

        Raises Restarted when that has happened already.
        """
        with self.changed:
            if segment.round != turn:
                raise Restarted
            if self._file is not None:
                return os.dup(self._file)
            return os.open(self.path if self.complete else self.part, os.O_RDONLY | os.O_CLOEXEC)

    def claim(self, segment: Segment) -> bool:
        """True for the one who fetches it now."""
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
        """Its bytes were wrong."""
        with self.changed:
            segment.have = 0
            segment.done = False
            segment.round += 1
            self.changed.notify_all()

    def verified(self, segment: Segment) -> bool:
        """Its digest was right; True when it was the last one missing."""
        with self.changed:
            segment.have = segment.size
            segment.done = True
            self.changed.notify_all()
            return all(each.done for each in self.segments)

    def completed(self) -> None:
        """All of it is at `path`. It is kept open: a model that is whole here is put in its place,
        and one that it replaces removed, while slower hosts still read these files."""
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
        """Bytes that can be read at `position` now; 0 when none came within `seconds`.

        Raises Restarted when the bytes of round `turn` were thrown away, Unavailable when
        this host cannot hold the blob.
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
    """None where so many are open that other work would soon lack descriptors."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if descriptor < os.sysconf("SC_OPEN_MAX") // 2:  # they are numbered from below
        return descriptor
    os.close(descriptor)
    return None


class Restarted(Exception):
    """What was read of the segment so far was wrong; it comes again."""


class Unavailable(Exception):
    """This host cannot hold the blob."""
