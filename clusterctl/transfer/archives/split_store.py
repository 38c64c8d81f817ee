"""Splits streams of `docker save` and compressed archives into the blob store of this machine."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.archives.file_record import FileRecord
from clusterctl.transfer.archives.members import Members, SplitMembers
from clusterctl.transfer.archives.split import BrokenArchive, Read, Row, Splitter, clean, still_true
from clusterctl.transfer.blob_store import BlobStore, disk_errors


def split_into(
    store: BlobStore,
    name: str,
    stream: Callable[[], AbstractContextManager[Read]],
    meter: Meter,
    *,
    needed: int,
) -> SplitMembers:
    """Split the tar of `stream` into the store; return its files. The stream is opened only if the
    store lacks the files of an earlier one of that `name`, and has room for `needed` bytes.

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
    return SplitMembers(told, store.blobs)


def unpacked(path: Path, kind: str, record: FileRecord, store: BlobStore, say: Say) -> Members:
    """Unpack `path` (`kind`: gzip, zstd) into `store`. Raises BrokenArchive, RequirementsNotMet."""
    meter = Meter(lambda text: say(f"unpacking {path.name}: {text}"), None)
    opened = _gzip if kind == "gzip" else _zstd
    stream = partial(opened, path)
    # The unpacked size is unknown, but at least the packed one.
    needed = path.stat().st_size
    return split_into(store, f"split-{record.name}", stream, meter, needed=needed)


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
