"""A tar that is compressed as a whole: unpacked into the blob store, once."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.archives.file_record import FileRecord
from clusterctl.transfer.archives.members import Members
from clusterctl.transfer.archives.split import Broken, Read
from clusterctl.transfer.archives.split_store import split_into
from clusterctl.transfer.blob_store import BlobStore


def unpacked(path: Path, kind: str, record: FileRecord, store: BlobStore, say: Say) -> Members:
    """`path`, compressed with `kind`: gzip or zstd. Raises Broken, RequirementsNotMet."""
    meter = Meter(lambda text: say(f"unpacking {path.name}: {text}"), None)
    opened = _gzip if kind == "gzip" else _zstd
    stream = partial(opened, path)
    # Nobody knows how much it unpacks to; it is no less than it is packed.
    needed = path.stat().st_size
    return split_into(store, f"split-{record.name}", stream, meter, needed=needed)


@contextmanager
def _gzip(path: Path) -> Iterator[Read]:
    with gzip.open(path, "rb") as file:

        def read(size: int) -> bytes:
            try:
                return file.read(size)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise Broken(f"it is truncated or damaged: {error}") from error

        yield read


@contextmanager
def _zstd(path: Path) -> Iterator[Read]:
    if shutil.which("zstd") is None:
        raise RequirementsNotMet(
            f"{path} is compressed with zstd, and there is no zstd on this machine",
            hint=f"install zstd, or unpack it elsewhere: zstd -d {path}",
        )
    argv = ["zstd", "-dcq", "--", str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if process.stdout is None or process.stderr is None:
            raise Broken("zstd gives no output")
        try:
            yield process.stdout.read
        except Broken as error:
            said = process.stderr.read().decode(errors="replace").strip()
            raise Broken(said or str(error)) from error
        finally:
            process.stdout.close()
            process.kill()
