"""Cached directories: built once for their inputs and then reused.

A directory is built beside its place and renamed when it is complete, so one that exists is
complete, even if a build was interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from clusterctl.lab.local import remove_tree

_PARTIAL = ".partial"


def content_key(*parts: str | bytes) -> str:
    """Return twelve hex digits for these inputs; the boundaries between parts count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]


def files_key(root: Path, files: Iterable[Path]) -> str:
    """Return a key for files below `root`: their relative names, modes and bytes."""
    parts: list[str | bytes] = []
    for file in sorted(files):
        executable = bool(file.stat().st_mode & 0o100)
        parts += [str(file.relative_to(root)), str(executable), file.read_bytes()]
    return content_key(*parts)


def cached_directory(place: Path, build: Callable[[Path], None]) -> bool:
    """Build `place` by `build(directory)` unless it exists. Return whether it was built."""
    if place.is_dir():
        return False
    partial = place.with_name(place.name + _PARTIAL)
    remove_tree(partial)
    partial.mkdir(parents=True)
    build(partial)
    partial.rename(place)
    return True


def prune(parent: Path, keep: str) -> None:
    """Delete all entries of `parent` except `keep`: they were built for other inputs."""
    if not parent.is_dir():
        return
    for entry in parent.iterdir():
        if entry.name != keep:
            remove_tree(entry)
