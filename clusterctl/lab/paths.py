"""Where the lab keeps its files: one directory, caches apart from what is running."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_LAB_DIR = Path("/var/lib/clusterctl-lab")


@dataclass(frozen=True)
class LabPaths:
    """The tree under one lab directory. `lab down` removes all but `cache`."""

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
    """The lab directory of this machine: CLUSTERCTL_LAB_DIR, or the default."""
    return LabPaths(Path(os.environ.get("CLUSTERCTL_LAB_DIR", DEFAULT_LAB_DIR)).absolute())
