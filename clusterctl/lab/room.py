"""The lab's caches, and the disk space and memory that `lab up` needs, checked before anything is
downloaded. The figures are measured (docs/lab.md), with some margin."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from clusterctl.lab import cgroups
from clusterctl.lab.base import base_key
from clusterctl.lab.image import image_directory, image_key, lock_files
from clusterctl.lab.mirror import packages_key
from clusterctl.lab.models import models_key
from clusterctl.lab.paths import LabPaths, content_key, prune
from clusterctl.lab.requirements import LabUnavailable
from clusterctl.units import GIB

MIB = 1 << 20

# Bytes on disk of each cache.
CACHE_DISK: Mapping[str, int] = {
    "base": 300 * MIB,
    "packages": 200 * MIB,
    "wheels": 800 * MIB,
    "wheel_index": 10 * MIB,
    "models": 10 * MIB,
    "image": 5500 * MIB,
}
# In addition while the image is built: its trees and layers are beside the archives.
IMAGE_BUILDING = 6500 * MIB
_OF_THE_IMAGE = frozenset({"wheels", "wheel_index", "image"})
BARE_HOST_DISK = GIB
# With vLLM's own image for GPUs: 26.6 GiB unpacked, beside the layers that the engine still reads.
GPU_HOST_DISK = 40 * GIB
# The same for another image, per byte of its archive: its layers, received and unpacked.
_PER_ARCHIVE = 2.5
# Peak per host: while its engine unpacks the image from the received layers; 3.3 GiB stay.
HOST_DISK = 9 * GIB

BARE_HOST_MEMORY = 150 * MIB
# Per host with engine and Ray that serves no model.
NODE_MEMORY = GIB
# For two hosts and clusterctl itself while they serve the model with TP 2.
SERVING_MEMORY: Mapping[str, int] = {"tiny": 6 * GIB, "qwen2.5-1.5b": 12 * GIB}


@dataclass(frozen=True)
class Caches:
    """The cache directories of this version of the lab, one of each kind."""

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
    """Delete caches of older versions. Only while no host runs: host disks overlay them."""
    for field in fields(current):
        place: Path = getattr(current, field.name)
        prune(place.parent, keep=place.name)


def gpu_host_disk(archive: Path) -> int:
    """Disk bytes of a host with the image in this archive, a file or an OCI layout."""
    files = [archive] if archive.is_file() else list(archive.rglob("*"))
    size = sum(file.stat().st_size for file in files if file.is_file())
    return round(size * _PER_ARCHIVE) if size else GPU_HOST_DISK


def disk_needed(built: Caches, new_hosts: int, *, image: bool, host: int | None = None) -> int:
    """Bytes that missing caches and new hosts will take. The image is built before hosts use much
    of their disks, so only the larger of the two counts. `host`: bytes for each host with GPUs."""
    names = (name for name in CACHE_DISK if image or name not in _OF_THE_IMAGE)
    missing = [name for name in names if not getattr(built, name).is_dir()]
    building = IMAGE_BUILDING if "image" in missing else 0
    hosts = new_hosts * (host or (HOST_DISK if image else BARE_HOST_DISK))
    return sum(CACHE_DISK[name] for name in missing) + max(building, hosts)


def memory_needed(hosts: int, model: str | None) -> int:
    """Bytes for `hosts` of which two serve `model`, or for bare ones (None)."""
    if model is None:
        return hosts * BARE_HOST_MEMORY
    return SERVING_MEMORY[model] + max(0, hosts - 2) * NODE_MEMORY


def lack_of_disk(directory: Path, needed: int) -> LabUnavailable | None:
    """Return an error if the file system of `directory` has less than `needed` bytes free."""
    there = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if free >= needed:
        return None
    return LabUnavailable(
        f"the lab needs {_gib(needed)} of disk for {directory}, but {_gib(free)} are free",
        hint="make room, or put it on a larger disk: CLUSTERCTL_LAB_DIR=DIRECTORY",
    )


def lack_of_memory(hosts: int, model: str | None, available: int) -> LabUnavailable | None:
    """Return an error if the hosts, two of which serve `model`, need more than `available`."""
    needed = memory_needed(hosts, model)
    if available >= needed:
        return None
    what = f"{hosts} bare hosts need" if model is None else f"a lab that serves {model} needs"
    smaller = next((name for name in SERVING_MEMORY if memory_needed(hosts, name) <= available), "")
    return LabUnavailable(
        f"{what} {_gib(needed)} of memory, but {_gib(available)} are available",
        hint=f"serve {smaller}: scripts/demo.sh --model {smaller}"
        if model and smaller
        else "stop programs that use memory, or use a machine with more",
    )


def available_memory(meminfo: Path = Path("/proc/meminfo"), mount: Path = cgroups.MOUNT) -> int:
    """Bytes available to hosts: the machine's, or, in a container, those within the limit of its
    control group."""
    table = (line.split() for line in meminfo.read_text().splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in table}
    left = [sizes["MemAvailable:"]]
    v2 = mount if cgroups.unified_only(mount) else mount / "unified"
    for limit, usage, prefix in (
        (v2 / "memory.max", v2 / "memory.current", ""),
        (mount / "memory/memory.limit_in_bytes", mount / "memory/memory.usage_in_bytes", "total_"),
    ):
        if limit.is_file() and (text := limit.read_text().strip()) != "max":
            lines = limit.with_name("memory.stat").read_text().splitlines()
            stat = dict(line.split() for line in lines)
            # Cached file pages are freed on demand.
            cached = sum(int(stat[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
            left.append(int(text) - int(usage.read_text()) + cached)
    return min(left)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
