"""Images in files and directories: OCI layouts and docker archives (`docker save`)."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl.containers.driver import Say
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.archives.contents import ArchiveContents, read_archive
from clusterctl.transfer.archives.file_record import FileRecord
from clusterctl.transfer.archives.members import (
    FileMembers,
    Members,
    directory_places,
    tar_places,
)
from clusterctl.transfer.archives.split import PLAIN, BrokenArchive, codec
from clusterctl.transfer.archives.split_store import unpacked
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import Blob, ImageSource, Location
from clusterctl.transfer.manifests import NotAnImage

HOW = "make it with: clusterctl image bundle IMAGE -o FILE, or: docker save IMAGE -o FILE"

# Magic bytes of unsupported compressions, and the program that decompresses each.
OTHER_CODECS = {b"BZh": "bunzip2", b"\xfd7zXZ": "unxz"}


def archive_image(
    path: Path, store: BlobStore, *, reference: str | None, platform: str | None, say: Say
) -> ImageSource:
    """Open the image `reference` in the file or directory `path`; its only image if that is None or
    the archive has no names. `platform` (linux/amd64) chooses among several; None: the only one.

    Layers are read in place; a compressed tar is unpacked into `store` once. A blob's digest is
    checked when it is read from the start. Raises RequirementsNotMet unless `path` holds that
    image, StepFailed naming a blob that is truncated or corrupt, or a file that changed meanwhile.
    """
    with _named(path):
        records = _Records(store)
        members = _members(path, store, records, say)
        return ArchivedImage(path, read_archive(members, reference, platform), members, records)


class ArchivedImage:
    """An image whose blobs are byte ranges of local files."""

    def __init__(
        self, path: Path, found: ArchiveContents, members: Members, records: _Records
    ) -> None:
        self.content = found.content
        self._path, self._found, self._members, self._records = path, found, members, records

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        name = self._found.files.get(blob.digest)
        place = self._members.location(name) if name else None
        if place is None:
            raise StepFailed(f"{self._path} does not contain {blob.digest}")
        record = self._records.of(place)
        if offset or record.known(place) == blob.digest:
            yield from record.read(place, offset)
        else:
            yield from self._checked(blob, place, record)

    def _checked(self, blob: Blob, place: Location, record: FileRecord) -> Iterator[bytes]:
        """Yield the blob's bytes, the last chunk only after the digest has matched."""
        hashed, held = hashlib.sha256(), b""
        for chunk in record.read(place, 0):
            if held:
                yield held
            hashed.update(chunk)
            held = chunk
        if hashed.hexdigest() != blob.hex:
            raise StepFailed(
                f"{self._path} is corrupt: {self._found.files[blob.digest]} does not have the "
                f"digest {blob.digest}",
                hint="copy or create the file again",
            )
        record.note(place, blob.digest)
        yield held


class _Records:
    """The FileRecord of each file that is read, created on first use."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._records: dict[Path, FileRecord] = {}

    def of(self, place: Location) -> FileRecord:
        if place.path not in self._records:
            self._records[place.path] = FileRecord(place.path, self._store)
        return self._records[place.path]

    def digest(self, place: Location) -> str:
        return self.of(place).digest(place)


def _members(path: Path, store: BlobStore, records: _Records, say: Say) -> Members:
    if path.is_dir():
        return FileMembers(directory_places(path), records.digest)
    with path.open("rb") as file:
        start = file.read(8)
    for magic, program in OTHER_CODECS.items():
        if start.startswith(magic):
            raise RequirementsNotMet(
                f"{path} is compressed with a method that clusterctl does not support",
                hint=f"{program} {path}",
            )
    record = records.of(Location(path, 0, 0))
    if (kind := codec(start)) != PLAIN:
        members = unpacked(path, kind, record, store, say)
        record.insist_unchanged()
        return members
    places = tar_places(path)
    record.insist_unchanged()
    return FileMembers(places, records.digest)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of reading an archive into RequirementsNotMet that names `path`."""
    try:
        yield
    except OSError as error:
        raise RequirementsNotMet(
            f"the image archive cannot be read: {error.strerror}: {path}", hint=f"ls -l {path}"
        ) from error
    except (NotAnImage, BrokenArchive, tarfile.TarError) as error:
        raise RequirementsNotMet(
            f"this is not a complete image archive: {path}: {error}", hint=HOW
        ) from error
    except RequirementsNotMet as error:
        if str(path) not in error.summary:
            error.summary = f"{path}: {error.summary}"
        raise
