"""Paths of the lab's files: one directory, with caches apart from the state of running hosts."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import LockHeld

DEFAULT_LAB_DIR = Path("/var/lib/clusterctl-lab")


@dataclass(frozen=True)
class LabPaths:
    """The tree under one lab directory. `lab down` keeps only `cache`, `image` and the lock."""

    root: Path

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def identity(self) -> Path:
        return self.keys / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.keys / "known_hosts"

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    def host(self, name: str) -> Path:
        return self.hosts / name

    @property
    def light(self) -> Path:
        return self.root / "light"

    @property
    def mirror(self) -> Path:
        return self.root / "mirror"

    @property
    def image(self) -> Path:
        return self.root / "image"

    @property
    def image_archive(self) -> Path:
        return self.image / "lab.tar"

    @property
    def bare_archive(self) -> Path:
        return self.image / "lab-bare.tar"

    @property
    def inventory(self) -> Path:
        return self.root / "lab.yaml"

    @property
    def light_inventory(self) -> Path:
        return self.root / "light.yaml"


def lab_paths() -> LabPaths:
    """Return the lab directory of this machine: CLUSTERCTL_LAB_DIR, or the default."""
    return LabPaths(Path(os.environ.get("CLUSTERCTL_LAB_DIR", DEFAULT_LAB_DIR)).absolute())


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock for the block. Raises LockHeld when another process holds it. The kernel
    releases it when its holder ends, however it ends."""
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
