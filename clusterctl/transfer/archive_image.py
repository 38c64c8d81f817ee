"""Images in files and directories: OCI layouts and docker archives (`docker save`)."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.archives.contents import (
    ArchiveContents,
    LocalFile,
    Members,
    directory_places,
    read_archive,
    split_members,
    tar_places,
)
from clusterctl.transfer.archives.split import (
    PLAIN,
    BrokenArchive,
    Read,
    Row,
    Splitter,
    clean,
    codec,
    still_true,
)
from clusterctl.transfer.blob_store import BlobStore, disk_errors
from clusterctl.transfer.content import CHUNK, Blob, ImageSource, Location, NotAnImage

HOW = "create it with: clusterctl image bundle IMAGE -o FILE, or: docker save IMAGE -o FILE"

# Magic bytes of unsupported compressions, and the program that decompresses each.
OTHER_CODECS = {b"BZh": "bunzip2", b"\xfd7zXZ": "unxz"}


def archive_image(
    path: Path, store: BlobStore, *, reference: str | None, platform: str | None, say: Say
) -> ImageSource:
    """Open the image `reference` in the file or directory `path`; its only image if that is None or
    the archive has no names. `platform` (linux/amd64) chooses among several; None: the only one.

    Layers are read in place; a compressed tar is unpacked into `store` once. A blob's digest is
    checked when it is read from the start. Raises RequirementsNotMet unless `path` holds that
    image, and StepFailed for a truncated or corrupt blob, or a file that changed meanwhile.
    """
    record_of = functools.cache(lambda file: FileRecord(file, store))
    try:
        members = _members(path, store, record_of, say)
        return ArchivedImage(path, read_archive(members, reference, platform), members, record_of)
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


class ArchivedImage:
    """An image whose blobs are byte ranges of local files."""

    def __init__(
        self, path: Path, found: ArchiveContents, members: Members, record_of: RecordOf
    ) -> None:
        self.content = found.content
        self._path, self._found, self._members, self._record_of = path, found, members, record_of

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        name = self._found.files.get(blob.digest)
        place = self._members[name].place if name else None
        if place is None:
            raise StepFailed(f"{self._path} does not contain {blob.digest}")
        record = self._record_of(place.path)
        if offset or record.known(place) == blob.digest:
            yield from record.read(place, offset)
            return
        # The last chunk only after the digest has matched.
        hashed, held = hashlib.sha256(), b""
        for chunk in record.read(place, 0):
            if held:
                yield held
            hashed.update(chunk)
            held = chunk
        if hashed.hexdigest() != blob.hex:
            raise StepFailed(
                f"{self._path} is corrupt: {name} does not have the digest {blob.digest}",
                hint="copy or create the file again",
            )
        record.note(place, blob.digest)
        yield held


class FileRecord:
    """Digests of parts of one file, kept in the blob store so that the file is hashed only once.

    The file counts as unchanged while device, inode, size and modification time stay the same.
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
                    if not chunk or _state(os.fstat(file.fileno())) != self._state:
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

    def _changed(self) -> StepFailed:
        return StepFailed(
            f"{self.path} changed while it was read",
            hint="wait until nothing writes to it, then run the same command again",
        )

    def _recalled(self) -> dict[str, str]:
        found = self._store.recall(self.name)
        return found if isinstance(found, dict) else {}


RecordOf = Callable[[Path], FileRecord]  # Returns the one record of a file


def _state(found: os.stat_result) -> tuple[int, int, int, int]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _key(place: Location) -> str:
    return f"{place.offset}-{place.size}"


def _members(path: Path, store: BlobStore, record_of: RecordOf, say: Say) -> Members:
    def local(places: Mapping[str, Location]) -> Members:
        def hashing(place: Location) -> str:
            return record_of(place.path).digest(place)

        return Members((name, LocalFile(name, place, hashing)) for name, place in places.items())

    if path.is_dir():
        return local(directory_places(path))
    with path.open("rb") as file:
        start = file.read(8)
    for magic, program in OTHER_CODECS.items():
        if start.startswith(magic):
            raise RequirementsNotMet(
                f"{path} is compressed with a method that clusterctl does not support",
                hint=f"{program} {path}",
            )
    record = record_of(path)
    if (kind := codec(start)) == PLAIN:
        members = local(tar_places(path))
    else:
        stream = partial(_gzip if kind == "gzip" else _zstd, path)
        meter = Meter(lambda text: say(f"unpacking {path.name}: {text}"), None)
        # The unpacked size is unknown, but at least the packed one.
        needed = path.stat().st_size
        members = split_into(store, f"split-{record.name}", stream, meter, needed=needed)
    record.insist_unchanged()
    return members


def split_into(
    store: BlobStore,
    name: str,
    stream: Callable[[], AbstractContextManager[Read]],
    meter: Meter,
    *,
    needed: int,
) -> Members:
    """Split the tar of `stream` into files of the store, and return them. If the store still has
    the files of an earlier stream with the same `name`, the stream is not opened; otherwise
    `needed` bytes must be free in the store.

    Raises BrokenArchive, RequirementsNotMet, and what the stream raises.
    """
    told = store.recall(name)
    if not isinstance(told, str) or not still_true(told, str(store.blobs), None):
        store.require_room(needed)
        lines: list[str] = []

        def listen(row: Row) -> None:
            if row[0] == "at":
                meter.reached(row[1])
            else:
                lines.append(json.dumps(row))

        with disk_errors(store.directory):
            store.blobs.mkdir(parents=True, exist_ok=True)
            clean(str(store.blobs))
            with stream() as read:
                Splitter(str(store.blobs), None, listen).split(read)
        told = "\n".join(lines)
        store.remember(name, told)
    return split_members(told, store.blobs)


@contextmanager
def _gzip(path: Path) -> Iterator[Read]:
    with gzip.open(path, "rb") as file:

        def read(size: int) -> bytes:
            try:
                return file.read(size)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise BrokenArchive(f"it is truncated or damaged: {error}") from error

        yield read


@contextmanager
def _zstd(path: Path) -> Iterator[Read]:
    if shutil.which("zstd") is None:
        raise RequirementsNotMet(
            f"{path} is compressed with zstd, but zstd is not installed on this machine",
            hint=f"install zstd, or unpack it elsewhere: zstd -d {path}",
        )
    argv = ["zstd", "-dcq", "--", str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if process.stdout is None or process.stderr is None:
            raise BrokenArchive("zstd produces no output")
        try:
            yield process.stdout.read
        except BrokenArchive as error:
            said = process.stderr.read().decode(errors="replace").strip()
            raise BrokenArchive(said or str(error)) from error
        finally:
            process.stdout.close()
            process.kill()
