"""The wheels that the lab image is made of, downloaded once with this machine's own pip."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl.errors import StepFailed
from clusterctl.lab.builds import persistently, run_build
from clusterctl.lab.image_inputs import image_directory
from clusterctl.lab.requirements import LabUnavailable

LOCKS = ("vllm.lock", "ray.lock")
# Wheels for glibc 2.5 up to 2.36, the one of Debian 12.
_OLDEST_GLIBC, _GLIBC = 5, 36


def lock_files(directory: Path) -> tuple[Path, ...]:
    """The lists of versions in docker/lab."""
    return tuple(directory / name for name in LOCKS)


def build_wheels(directory: Path, tree: Path) -> None:
    """Download every wheel of the lock files, for the Python of `tree`."""
    machine = platform.machine()
    if machine != "x86_64":
        raise LabUnavailable(f"the lab image's versions are pinned for x86_64, not {machine}")
    locks = lock_files(image_directory())
    log = directory.with_name(directory.name + ".log")
    argv = download_argv(directory, locks, python_version(tree), machine)
    persistently(lambda: run_build(argv, log=log))


def python_version(tree: Path) -> str:
    """The Python of a Debian tree, as 3.11."""
    found = [match[1] for file in (tree / "usr/bin").glob("python3.*")
             if (match := re.fullmatch(r"python(3\.\d+)", file.name))]  # fmt: skip
    if len(found) != 1:
        raise StepFailed(f"expected one Python in {tree}, found {found or 'none'}")
    return found[0]


def download_argv(directory: Path, locks: Sequence[Path], version: str, machine: str) -> list[str]:
    """pip's command; the wheels' platform is the image's, whatever Python runs this."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_OLDEST_GLIBC, _GLIBC + 1)]
    platforms += [f"manylinux{name}_{machine}" for name in ("1", "2010", "2014")]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
        "--only-binary", ":all:", "--implementation", "cp", "--python-version", version,
        *(word for name in platforms for word in ("--platform", name)),
        *(word for lock in locks for word in ("--requirement", str(lock))),
        "--dest", str(directory),
    ]  # fmt: skip
