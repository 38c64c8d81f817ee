"""Images as files that `docker load` takes: a tar of layer tars, a config and a manifest.

The same trees give the same bytes: entries are sorted, times and names of owners fixed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CREATED = "2026-01-01T00:00:00Z"
# The same moment: zip, which Ray uses for packages, knows no time before 1980.
_MTIME = 1_767_225_600
# Filled in by whoever runs the image; what a build leaves there is not part of it.
_EMPTY = frozenset({"dev", "proc", "run", "sys", "tmp", "var/cache/apt", "var/log", "root/.cache"})


@dataclass(frozen=True)
class Layer:
    """An uncompressed layer tar on disk, and its digest (the diff ID)."""

    file: Path
    digest: str
    made_by: str


@dataclass(frozen=True)
class Image:
    """What one archive holds."""

    tag: str
    layers: tuple[Layer, ...]
    environment: Mapping[str, str]
    architecture: str = "amd64"


def write_layer(tree: Path, file: Path, made_by: str) -> Layer:
    """Pack a tree (a root, or the upper directory of an overlay) as a layer."""
    with file.open("wb") as target:
        hashing = _HashingWriter(target)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.GNU_FORMAT) as tar:
            for path in tree_entries(tree):
                _add(tar, tree, path)
    return Layer(file, hashing.digest.hexdigest(), made_by)


def tree_entries(tree: Path) -> Iterator[Path]:
    """Everything of a tree that belongs into a layer, parents first, sorted by name."""
    for name, directories, files in os.walk(tree):
        parent = Path(name)
        directories.sort()
        names = sorted([*directories, *files])
        empty = str(parent.relative_to(tree)) in _EMPTY
        if empty:
            directories.clear()
        else:
            yield from (parent / entry for entry in names)


def image_config(image: Image) -> dict[str, Any]:
    """The image's config document; its digest is the image ID."""
    return {
        "architecture": image.architecture,
        "os": "linux",
        "created": CREATED,
        "config": {
            "Env": [f"{name}={value}" for name, value in image.environment.items()],
            "Cmd": ["bash"],
            "WorkingDir": "/",
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{layer.digest}" for layer in image.layers],
        },
        "history": [{"created": CREATED, "created_by": layer.made_by} for layer in image.layers],
    }


def write_archive(image: Image, file: Path) -> None:
    """Write the image as a docker-archive."""
    config = json.dumps(image_config(image), sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{layer.digest}/layer.tar" for layer in image.layers]
    manifest = [{"Config": config_name, "RepoTags": [image.tag], "Layers": names}]
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as tar:
        _add_bytes(tar, "manifest.json", json.dumps(manifest).encode())
        _add_bytes(tar, config_name, config)
        for name, layer in zip(names, image.layers, strict=True):
            _add_file(tar, name, layer.file)


def _add(tar: tarfile.TarFile, tree: Path, path: Path) -> None:
    name = str(path.relative_to(tree))
    status = path.lstat()
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        # How an overlay marks a deletion; layers have their own way to say it.
        _add_bytes(tar, str(Path(name).with_name(f".wh.{path.name}")), b"")
        return
    if stat.S_ISSOCK(status.st_mode):
        return
    info = tar.gettarinfo(path, name)
    info.mtime, info.uname, info.gname = _MTIME, "", ""
    if not info.isreg():
        tar.addfile(info)
        return
    with path.open("rb") as source:
        tar.addfile(info, source)


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(data), _MTIME
    tar.addfile(info, io.BytesIO(data))


def _add_file(tar: tarfile.TarFile, name: str, file: Path) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = file.stat().st_size, _MTIME
    with file.open("rb") as source:
        tar.addfile(info, source)


class _HashingWriter(io.RawIOBase):
    """Passes bytes on and hashes them: a layer is too large to be read again for it."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._target.write(data)


def archive_tags(file: Path) -> Sequence[str]:
    """The tags of an archive's first image, read from its manifest."""
    with tarfile.open(file) as tar:
        member = tar.extractfile("manifest.json")
        document = json.load(member) if member else []
    return tuple(document[0]["RepoTags"])
