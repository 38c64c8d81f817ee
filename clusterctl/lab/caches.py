"""Paths of the cached directories, by the inputs that they are built from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from clusterctl.lab.base import base_key
from clusterctl.lab.cache import content_key, prune
from clusterctl.lab.image import image_directory, image_key, lock_files
from clusterctl.lab.models import models_key
from clusterctl.lab.packages import packages_key
from clusterctl.lab.paths import LabPaths


@dataclass(frozen=True)
class Caches:
    """The directory of each kind that belongs to this version of the lab."""

    base: Path
    packages: Path
    wheels: Path
    wheel_index: Path
    models: Path
    image: Path


def caches(paths: LabPaths, suite: str) -> Caches:
    """Return the directories for hosts of a Debian or Ubuntu release."""
    base = base_key(suite)
    wheels = content_key(suite, *(lock.read_bytes() for lock in lock_files(image_directory())))
    return Caches(
        base=paths.cache / "base" / base,
        packages=paths.cache / "packages" / packages_key(base),
        wheels=paths.cache / "wheels" / wheels,
        wheel_index=paths.cache / "wheel-index" / wheels,
        models=paths.cache / "models" / models_key(),
        image=paths.cache / "image" / content_key(suite, image_key()),
    )


def prune_caches(current: Caches) -> None:
    """Delete caches of older versions. Only while no host runs, since host disks overlay them."""
    for field in fields(current):
        place: Path = getattr(current, field.name)
        prune(place.parent, keep=place.name)
