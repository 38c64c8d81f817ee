"""Cached digests of a file's parts, valid as long as the file is unchanged."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from clusterctl.errors import StepFailed
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import CHUNK, Location


class FileRecord:
    """Digests of parts of one file, kept in the blob store so that the file is hashed only once.

    The file counts as unchanged while device, inode, size and modification time are the same.
    """

    def __init__(self, path: Path, store: BlobStore) -> None:
        self.path, self._store = path, store
        self._state = _state(path.stat())
        self.name = "file-" + "-".join(map(str, self._state))
        self._lock = threading.Lock()

    def digest(self, place: Location) -> str:
        """Return the digest of the bytes at `place`, from the record or by hashing them."""
        known = self.known(place)
        if known is None:
            hashed = hashlib.sha256()
            for chunk in self.read(place, 0):
                hashed.update(chunk)
            known = f"sha256:{hashed.hexdigest()}"
            self.note(place, known)
        return known

    def known(self, place: Location) -> str | None:
        return self._recalled().get(_key(place))

    def note(self, place: Location, digest: str) -> None:
        with self._lock:
            self._store.remember(self.name, {**self._recalled(), _key(place): digest})

    def read(self, place: Location, offset: int) -> Iterator[bytes]:
        """Yield the bytes from `offset` on. Raises StepFailed if the file changes meanwhile."""
        try:
            with place.path.open("rb") as file:
                file.seek(place.offset + offset)
                left = place.size - offset
                while left > 0:
                    chunk = file.read(min(left, CHUNK))
                    self._insist_unchanged(file)
                    if not chunk:
                        raise self._changed()
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise StepFailed(
                f"{self.path} cannot be read: {error.strerror}", detail=str(error)
            ) from error

    def insist_unchanged(self) -> None:
        """Raise StepFailed if the file has changed since this record was created."""
        try:
            if _state(self.path.stat()) != self._state:
                raise self._changed()
        except OSError as error:
            raise StepFailed(f"{self.path} is gone: {error.strerror}") from error

    def _insist_unchanged(self, file: BinaryIO) -> None:
        if _state(os.fstat(file.fileno())) != self._state:
            raise self._changed()

    def _changed(self) -> StepFailed:
        return StepFailed(
            f"{self.path} changed while it was read",
            hint="let whatever writes it finish, and run the same command again",
        )

    def _recalled(self) -> dict[str, str]:
        found = self._store.recall(self.name)
        return found if isinstance(found, dict) else {}


def _state(found: os.stat_result) -> tuple[int, int, int, int]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _key(place: Location) -> str:
    return f"{place.offset}-{place.size}"
