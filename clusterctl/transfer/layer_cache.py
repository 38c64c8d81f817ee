"""The store of image layers on this machine, as the one sees it whose disk it takes up."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import LockHeld, StepFailed
from clusterctl.transfer.blob_store import BlobStore, locked
from clusterctl.transfer.local_disk import free_space


@dataclass(frozen=True)
class LayerCache:
    """Sizes in bytes."""

    directory: Path
    size: int  # Of its layers, those that came in part included
    free: int  # Left on its disk


def look(store: BlobStore) -> LayerCache:
    """What is there. Changes nothing."""
    files = store.blobs.glob("*")
    return LayerCache(store.directory, sum(map(_size, files)), free_space(store.directory))


def clear(store: BlobStore) -> None:
    """Remove all of it. Raises LockHeld while somebody uses it, and StepFailed."""
    if not store.directory.exists():
        return
    try:
        with store.use.open("ab") as file:
            if not locked(file):
                raise LockHeld(
                    f"another clusterctl uses the layers in {store.directory}",
                    hint=f"wait for its end; see which: fuser -v {store.use}",
                )
            for directory in (store.directory / "refs", store.blobs.parent):
                if directory.exists():
                    shutil.rmtree(directory)
    except OSError as error:
        raise StepFailed(
            f"{store.directory} cannot be cleared: {error.strerror}: {error.filename}",
            hint=f"ls -la {store.directory}",
        ) from error


def _size(path: Path) -> int:
    """Of a file that may just have gone, or got its name."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
