"""Files of the lab: one directory, its lock, and caches apart from running hosts' state."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import LockHeld
from clusterctl.lab.local import remove_tree

DEFAULT_LAB_DIR = Path("/var/lib/clusterctl-lab")


class LabPaths:
    """The tree under one lab directory. `lab down` keeps only `cache`, `image` and the lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = root / "cache"
        self.lock = root / "lock"
        self.keys = root / "keys"
        self.identity = self.keys / "id_ed25519"
        self.known_hosts = self.keys / "known_hosts"
        self.password = self.keys / "ops.password"
        self.hosts = root / "hosts"
        self.light = root / "light"
        self.mirror = root / "mirror"
        self.image = root / "image"
        self.image_archive = self.image / "lab.tar"
        self.bare_archive = self.image / "lab-bare.tar"
        self.gpu_archive = root / "gpu-image.tar"  # What the user brings, unless it is elsewhere
        self.inventory = root / "lab.yaml"
        self.light_inventory = root / "light.yaml"

    def host(self, name: str) -> Path:
        return self.hosts / name


def lab_paths() -> LabPaths:
    """Return the lab directory of this machine: CLUSTERCTL_LAB_DIR, or the default."""
    return LabPaths(Path(os.environ.get("CLUSTERCTL_LAB_DIR", DEFAULT_LAB_DIR)).absolute())


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock until the end of the block. Raises LockHeld when another process holds it. The
    kernel releases it when its holder ends, even if it is killed."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        deadline = time.monotonic() + deadlines.LAB_LOCK
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    text = "another clusterctl is changing this lab"
                    raise LockHeld(text, hint="wait for it to end") from None
            time.sleep(0.05)
        yield


def content_key(*parts: str | bytes) -> str:
    """Return twelve hex digits for these inputs; the boundaries between parts matter."""
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
    """Build `place` by `build(directory)` unless it exists. Return whether it was built.

    It is built next to its place and renamed when complete, so that an existing directory is
    complete even if a build was interrupted.
    """
    if place.is_dir():
        return False
    partial = place.with_name(place.name + ".partial")
    remove_tree(partial)
    partial.mkdir(parents=True)
    build(partial)
    partial.rename(place)
    return True


def prune(parent: Path, keep: str) -> None:
    """Delete all entries of `parent` except `keep`: they were built for different inputs."""
    if not parent.is_dir():
        return
    for entry in parent.iterdir():
        if entry.name != keep:
            remove_tree(entry)
