"""The disk of the operator's machine: where the cache is, and how much space is free."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SPARE = 256 << 20  # Bytes to be left free on it

# What to do when it is full.
ROOM = (
    "make room (clusterctl image cache --clear), or set XDG_CACHE_HOME to a directory on a larger "
    "disk"
)


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/clusterctl`, or ~/.cache/clusterctl."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "clusterctl"


def free_space(directory: Path) -> int:
    """Bytes that can be written there, also when it is yet to be made."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free
