"""The directory on this machine for what can be had again: layers of images, hashes, answers."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/clusterctl`, or ~/.cache/clusterctl."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "clusterctl"


def make_private(directory: Path) -> None:
    """Make a cache that only this user may enter: images and models may be private. Raises
    OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid == os.geteuid():
        directory.chmod(0o700)  # an earlier version left it open
