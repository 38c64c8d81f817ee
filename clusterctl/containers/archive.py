"""A `docker save` file on the operator's machine: what is in it, and its bytes."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from clusterctl.containers.image_stream import CHUNK
from clusterctl.errors import RequirementsNotMet

_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
"""First bytes of gzip, zstd, bzip2, xz: what `docker load` unpacks by itself."""

EXPANSION = 3.5
"""Unpacked bytes to a compressed byte of an image; 420 MB became 314 (gzip), larger ones with
CUDA libraries 2 to 3 times less."""


@dataclass(frozen=True)
class Archive:
    """`layers` (diff IDs) and `tags` of its one image; None where the file is compressed, since
    looking inside would mean to unpack it all. `size` in bytes."""

    path: Path
    size: int
    unpacked: int
    """About what it will take once unpacked, in bytes."""
    layers: tuple[str, ...] | None
    tags: tuple[str, ...]

    def chunks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def open_archive(path: Path) -> Archive:
    """What `path` holds. Raises RequirementsNotMet when it is no docker archive of one image."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(6).startswith(_COMPRESSED):
                return Archive(path, size, int(size * EXPANSION), None, ())
        with tarfile.open(path, "r:") as tar:
            return _inspect(tar, path, size)
    except OSError as error:
        raise RequirementsNotMet(
            f"image_archive cannot be read: {error.strerror}: {path}",
            hint="correct `image_archive` in the inventory, or leave it out",
        ) from error
    except (tarfile.TarError, KeyError, ValueError, IndexError) as error:
        raise RequirementsNotMet(
            f"image_archive is not a docker archive: {path}",
            hint=f"make it with: docker save IMAGE -o {path}",
            detail=str(error),
        ) from error


def _inspect(tar: tarfile.TarFile, path: Path, size: int) -> Archive:
    manifests = _json(tar, "manifest.json")
    if len(manifests) != 1:
        raise ValueError(f"{len(manifests)} images are in it, one is expected")
    config = _json(tar, manifests[0]["Config"])
    layers = tuple(config["rootfs"]["diff_ids"])
    return Archive(path, size, size, layers, tuple(manifests[0].get("RepoTags") or ()))


def _json(tar: tarfile.TarFile, name: str) -> Any:
    member: IO[bytes] | None = tar.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is no file")
    return json.load(member)
