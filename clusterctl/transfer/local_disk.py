"""Disk of the operator's machine: cache directory and free space."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SPARE = 256 << 20  # Bytes to leave free on the disk

# Hint for a full disk.
ROOM = (
    "make room (clusterctl image cache --clear), or set XDG_CACHE_HOME to a directory on a larger "
    "disk"
)


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/clusterctl`, or ~/.cache/clusterctl."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "clusterctl"


def free_space(directory: Path) -> int:
    """Return the bytes free for files in `directory`, which need not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free
