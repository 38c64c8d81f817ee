"""Blobs on the operator's machine, each in a file named by its digest.

    blobs/sha256/<64 digits>         complete, digest verified
    blobs/sha256/<64 digits>.part    incomplete; locked by the process that writes it
    refs/<name>.json                 cached facts about an image or a file, such as digests
    in-use                           lock file, held shared by every user of the store

Several processes may share a store; a blob is written by one at a time, which resumes where another
stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, BinaryIO

from clusterctl.containers.meter import gib
from clusterctl.errors import LockHeld, RequirementsNotMet, StepFailed
from clusterctl.local_cache import cache_directory, make_private
from clusterctl.transfer.content import CHUNK, Blob, ImageContent, digest_of

SPARE = 256 << 20  # Bytes to leave free on the disk

# Hint for a full disk.
ROOM = (
    "make room (clusterctl image cache --clear), or set XDG_CACHE_HOME to a directory on a larger "
    "disk"
)

Fetch = Callable[[int], Iterator[bytes]]  # Yields a blob's bytes from a byte offset on


def free_space(directory: Path) -> int:
    """Return the bytes free for files in `directory`, which need not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


class WrongBytes(StepFailed):
    """A source delivered bytes whose digest is not the blob's."""


@dataclass(frozen=True)
class StoreUsage:
    """Disk usage of a store, in bytes."""

    directory: Path
    size: int  # Of all blobs, incomplete ones included
    free: int  # Free on its disk


class BlobStore:
    """A directory of blobs. Writing to a full or read-only disk raises RequirementsNotMet."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_directory()
        self._in_use = False
        # By digest: files in `_fallback`, for small blobs of a store that is not writable.
        self._fallback: Path | None = None
        self._in_fallback: dict[str, Path] = {}

    @property
    def use(self) -> Path:
        """Path of the lock file. Every user of the store holds a shared lock on it."""
        return self.directory / "in-use"

    @property
    def blobs(self) -> Path:
        return self.directory / "blobs" / "sha256"

    def path(self, digest: str) -> Path:
        """Path of the blob's file once it is complete."""
        return self._in_fallback.get(digest) or self.blobs / digest.removeprefix("sha256:")

    def part(self, digest: str) -> Path:
        """Path of the blob's file until it is complete."""
        return self.path(digest).with_suffix(".part")

    def holds(self, blob: Blob) -> bool:
        self._begin_use()
        return _size(self.path(blob.digest), default=-1) == blob.size

    def usage(self) -> StoreUsage:
        """Return how much disk the store uses. Changes nothing."""
        size = sum(map(_size, self.blobs.glob("*")))
        return StoreUsage(self.directory, size, free_space(self.directory))

    def clear(self) -> None:
        """Remove all blobs and records. Raises LockHeld while the store is in use, StepFailed."""
        if not self.directory.exists():
            return
        try:
            with self.use.open("ab") as file:
                if not locked(file):
                    raise LockHeld(
                        f"another clusterctl is using the layers in {self.directory}",
                        hint=f"wait until it ends; to find it: fuser -v {self.use}",
                    )
                for directory in (self.directory / "refs", self.blobs.parent):
                    if directory.exists():
                        shutil.rmtree(directory)
        except OSError as error:
            raise StepFailed(
                f"{self.directory} cannot be cleared: {error.strerror}: {error.filename}",
                hint=f"ls -la {self.directory}",
            ) from error

    def require_room(self, needed: int) -> None:
        """Raise RequirementsNotMet unless the store's disk has room for `needed` more bytes."""
        free = free_space(self.directory)
        if needed and needed + SPARE > free:
            raise RequirementsNotMet(
                f"{gib(needed)} of image layers do not fit into {self.directory} on this machine: "
                f"{gib(free)} are free",
                hint=ROOM,
            )

    def missing(self, blobs: Iterable[Blob]) -> int:
        """Return how many bytes of `blobs` the store lacks."""
        once = {blob.digest: blob for blob in blobs}.values()
        return sum(
            blob.size - min(_size(self.part(blob.digest)), blob.size)
            for blob in once
            if not self.holds(blob)
        )

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a complete blob. Raises StepFailed if the store does not hold it."""
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
        """Store a small blob from memory, such as a manifest; return its file."""
        blob = Blob(digest_of(data), len(data))
        path = self.path(blob.digest)
        try:
            if not self.holds(blob):
                path.parent.mkdir(parents=True, exist_ok=True)
                fresh = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
                fresh.write_bytes(data)
                fresh.rename(path)
        except OSError:
            # A store that is not writable (in a dry run, say) can be read: keep the blob elsewhere.
            if self._fallback is None:
                self._fallback = Path(mkdtemp(prefix="clusterctl-"))
                weakref.finalize(self, shutil.rmtree, self._fallback, ignore_errors=True)
            path = self._in_fallback[blob.digest] = self._fallback / blob.hex
            path.write_bytes(data)
        return path

    def fill(self, blob: Blob, fetch: Fetch) -> Path:
        """Download the blob with `fetch`, resuming an earlier attempt; return its file.

        Raises WrongBytes and discards the data if the digest does not match, LockHeld while another
        process downloads it. Errors of `fetch` propagate; the part file is kept so that the next
        attempt resumes.
        """
        path, part = self.path(blob.digest), self.part(blob.digest)
        if self.holds(blob):
            return path
        with disk_errors(self.directory):
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("a+b") as file:
                if not locked(file):
                    raise LockHeld(
                        f"another clusterctl is downloading {blob.digest[:19]}",
                        hint=f"wait until it ends; to find it: fuser -v {part}",
                    )
                if not same_file(file, part):  # its writer has just completed it
                    return self.fill(blob, fetch)
                had = os.fstat(file.fileno()).st_size
                is_right = _complete(blob, file, fetch)
                if not is_right and had:
                    # The earlier attempt may have left the wrong bytes: fetch the whole blob.
                    file.truncate(0)
                    is_right = _complete(blob, file, fetch)
                if not is_right:
                    part.unlink()
                    raise WrongBytes(f"{blob.digest} arrived with a different digest")
                os.fsync(file.fileno())
                part.rename(path)
        return path

    def remember(self, name: str, document: Any) -> None:
        """Save a JSON document as `name` (letters, digits, `-`). The document is only a cache:
        write errors are ignored."""
        path = self.directory / "refs" / f"{name}.json"
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(document))
            fresh.rename(path)

    def recall(self, name: str) -> Any:
        """Return the document saved as `name`; None if there is none or it cannot be read."""
        self._begin_use()
        try:
            return json.loads((self.directory / "refs" / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None

    def _begin_use(self) -> None:
        """Hold the shared lock until this object is gone, so that no process clears the store.
        Errors are ignored: a read-only store can still be read."""
        if self._in_use:
            return
        with suppress(OSError):
            make_private(self.directory)
            descriptor = os.open(self.use, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            weakref.finalize(self, os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        self._in_use = True


@dataclass(frozen=True)
class StoredImage:
    """An image whose blobs are all in the store."""

    content: ImageContent
    store: BlobStore

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        return self.store.open(blob, offset)


def locked(file: BinaryIO) -> bool:
    """Lock the file without waiting; return False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def same_file(file: BinaryIO, path: Path) -> bool:
    """Return whether `path` is still the open file: its writer may just have renamed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Raise the disk's OSErrors as RequirementsNotMet. Sources map their own errors first."""
    try:
        yield
    except OSError as error:
        raise RequirementsNotMet(
            f"the cache of image layers cannot be written: {error.strerror}: {directory}",
            hint=ROOM,
        ) from error


def _complete(blob: Blob, file: BinaryIO, fetch: Fetch) -> bool:
    """Append the missing bytes to `file`; return whether its digest then matches."""
    hashed, count = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        hashed.update(chunk)
        count += len(chunk)
    if count < blob.size:
        for chunk in fetch(count):
            hashed.update(chunk)
            file.write(chunk)
            file.flush()
            count += len(chunk)
    if count < blob.size:
        raise StepFailed(
            f"{blob.digest} ends after {count} of {blob.size} bytes",
            hint="run the same command again: it resumes there",
        )
    return hashed.hexdigest() == blob.hex


def _size(path: Path, default: int = 0) -> int:
    """Return the size of a file in bytes; `default` if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return default
