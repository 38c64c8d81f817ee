"""Blobs on the operator's machine, each in a file named by its digest.

    blobs/sha256/<64 digits>         complete, and its digest was checked
    blobs/sha256/<64 digits>.part    on its way; its lock is held by whoever writes it
    refs/<name>.json                 what is known of an image, so that it is not found out twice
    in-use                           its lock is shared by all who use the store

Several processes may share a store: one writes a blob, the others wait for it or go on where
it left off.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, BinaryIO

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.amounts import gib
from clusterctl.transfer.content import CHUNK, Blob
from clusterctl.transfer.local_disk import ROOM, SPARE, cache_directory, free_space
from clusterctl.transfer.location import Location
from clusterctl.transfer.manifests import digest_of

Fetch = Callable[[int], Iterator[bytes]]  # The blob's bytes from an offset on

# Told how many bytes of the blob are there, each time that more are.
Arrived = Callable[[int], None]

# Seconds after which another process that writes a blob, and makes no progress, is given up.
WRITER_SILENCE = 120.0

LOOK_EVERY = 0.1


class WrongBytes(StepFailed):
    """A source delivered bytes that are not the blob's."""


class BlobStore:
    """A directory of blobs. Raises RequirementsNotMet when its disk is full or not ours."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_directory()
        self._in_use = False
        self._elsewhere: Path | None = None
        # Small blobs that the directory did not take, by digest: files in `_elsewhere`.
        self._beside: dict[str, Path] = {}

    @property
    def use(self) -> Path:
        """The file that whoever uses the store holds locked."""
        return self.directory / "in-use"

    @property
    def blobs(self) -> Path:
        return self.directory / "blobs" / "sha256"

    def path(self, digest: str) -> Path:
        """Where the blob is, once it is there."""
        return self._beside.get(digest) or self.blobs / digest.removeprefix("sha256:")

    def part(self, digest: str) -> Path:
        """Where it is on its way."""
        return self.path(digest).with_suffix(".part")

    def holds(self, blob: Blob) -> bool:
        self._begin_use()
        try:
            return self.path(blob.digest).stat().st_size == blob.size
        except FileNotFoundError:
            return False

    def require_room(self, needed: int) -> None:
        """Raises RequirementsNotMet when so many further bytes do not fit on its disk."""
        if not self.has_room(needed):
            free = free_space(self.directory)
            raise RequirementsNotMet(
                f"{gib(needed)} of image layers are to come into {self.directory} on this "
                f"machine, and {gib(free)} are free there",
                hint=ROOM,
            )

    def has_room(self, needed: int) -> bool:
        return not needed or needed + SPARE <= free_space(self.directory)

    def missing(self, blobs: Iterable[Blob]) -> int:
        """Bytes of them that are not here yet."""
        once = {blob.digest: blob for blob in blobs}.values()
        return sum(blob.size - self._arrived(blob) for blob in once if not self.holds(blob))

    def _arrived(self, blob: Blob) -> int:
        try:
            return min(self.part(blob.digest).stat().st_size, blob.size)
        except FileNotFoundError:
            return 0

    def location(self, blob: Blob) -> Location | None:
        return Location(self.path(blob.digest), 0, blob.size) if self.holds(blob) else None

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """A complete blob's bytes. Raises StepFailed when it is not there."""
        try:
            with self.path(blob.digest).open("rb") as file:
                file.seek(offset)
                while chunk := file.read(CHUNK):
                    yield chunk
        except FileNotFoundError as error:
            raise StepFailed(
                f"{blob.digest} is gone from {self.directory}", hint="run the same command again"
            ) from error

    def keep(self, data: bytes) -> Path:
        """Put a small blob that is here already, such as a manifest; its file."""
        blob = Blob(digest_of(data), len(data))
        try:
            return self.fill(blob, lambda offset: iter((data[offset:],)))
        except RequirementsNotMet:
            # A store that cannot be written to serves looking all the same, as in a dry run.
            if self._elsewhere is None:
                self._elsewhere = Path(mkdtemp(prefix="clusterctl-"))
                weakref.finalize(self, shutil.rmtree, self._elsewhere, ignore_errors=True)
            file = self._elsewhere / blob.hex
            file.write_bytes(data)
            self._beside[blob.digest] = file
            return file

    def fill(self, blob: Blob, fetch: Fetch, arrived: Arrived | None = None) -> Path:
        """Get the blob by `fetch`, from where an earlier attempt stopped; its file.

        Raises WrongBytes when they are not the blob's: nothing is kept of them. Whatever
        `fetch` raises passes, and what came until then is kept.
        """
        path = self.path(blob.digest)
        with disk_errors(self.directory), self._writing(blob, arrived or _nobody) as file:
            if file is not None:
                self._receive(blob, file, fetch, arrived or _nobody)
                os.fsync(file.fileno())
                self.part(blob.digest).rename(path)
        if arrived:
            arrived(blob.size)
        return path

    def _receive(self, blob: Blob, file: BinaryIO, fetch: Fetch, arrived: Arrived) -> None:
        """What an earlier attempt left may be what is wrong: then all of it comes anew."""
        had = os.fstat(file.fileno()).st_size
        whole = _completed(blob, file, fetch, arrived)
        if not whole and had:
            file.truncate(0)
            whole = _completed(blob, file, fetch, arrived)
        if not whole:
            self.part(blob.digest).unlink()
            raise WrongBytes(f"{blob.digest} arrived with other bytes than its digest promises")

    @contextmanager
    def _writing(self, blob: Blob, arrived: Arrived) -> Iterator[BinaryIO | None]:
        """The part file, locked; None once the blob is there, from whomever it came."""
        self._begin_use()
        part = self.part(blob.digest)
        part.parent.mkdir(parents=True, exist_ok=True)
        watch = _Watch(blob, part)
        while not self.holds(blob):
            with part.open("a+b") as file:
                if locked(file) and same_file(file, part):
                    yield file
                    return
            arrived(watch.look())
        yield None

    def remember(self, name: str, document: Any) -> None:
        """Keep a JSON document under `name`: letters, digits, and `-`. It saves work later, and is
        not kept where it cannot be written."""
        path = self.directory / "refs" / f"{name}.json"
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(document))
            fresh.rename(path)

    def recall(self, name: str) -> Any:
        """What was kept under `name`; None when nothing was, or it cannot be read."""
        self._begin_use()
        try:
            return json.loads((self.directory / "refs" / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None

    def _begin_use(self) -> None:
        """Until this object is gone nobody clears the store. One that cannot be written to can
        be read."""
        if self._in_use:
            return
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.use, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            weakref.finalize(self, os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        self._in_use = True


class _Watch:
    """Looks at a part file that another process writes."""

    def __init__(self, blob: Blob, part: Path) -> None:
        self._blob, self._part = blob, part
        self._size, self._moved = -1, time.monotonic()

    def look(self) -> int:
        """Its size after a moment; raises StepFailed when none has come for WRITER_SILENCE."""
        time.sleep(LOOK_EVERY)
        size = self._part.stat().st_size if self._part.exists() else 0
        if size != self._size:
            self._size, self._moved = size, time.monotonic()
        elif time.monotonic() - self._moved > WRITER_SILENCE:
            raise StepFailed(
                f"another process fetches {self._blob.digest} and makes no progress",
                hint=f"see who: fuser -v {self._part}",
            )
        return size


def _nobody(count: int) -> None:
    del count


def locked(file: BinaryIO) -> bool:
    """Whether nobody else has it locked; we have then."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def same_file(file: BinaryIO, path: Path) -> bool:
    """Whether `path` is still the file that was opened: its writer may have just renamed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _completed(blob: Blob, file: BinaryIO, fetch: Fetch, arrived: Arrived) -> bool:
    """Fetch what lacks behind what is in `file`; whether it is the blob."""
    hashed, count = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        hashed.update(chunk)
        count += len(chunk)
    arrived(min(count, blob.size))
    if count < blob.size:
        for chunk in fetch(count):
            hashed.update(chunk)
            file.write(chunk)
            file.flush()
            count += len(chunk)
            arrived(min(count, blob.size))
    _insist_whole(blob, count)
    return hashed.hexdigest() == blob.hex


def _insist_whole(blob: Blob, count: int) -> None:
    if count < blob.size:
        raise StepFailed(
            f"{blob.digest} ends after {count} of {blob.size} bytes",
            hint="run the same command again: it goes on from there",
        )


@contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """What the disk says, as words. Sources map their own errors before they get here."""
    try:
        yield
    except OSError as error:
        raise RequirementsNotMet(
            f"the cache of image layers cannot be written: {error.strerror}: {directory}",
            hint=ROOM,
        ) from error
