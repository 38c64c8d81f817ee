"""A machine for each test, and what the first command needs on one that reaches nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.lab import lifecycle
from clusterctl.lab.base import machine_source
from clusterctl.lab.paths import cached_directory, content_key, lab_paths
from clusterctl.lab.room import caches
from tests.lab.cluster import quiet
from tests.machines.machine import Machine, machine

ROOT = Path(__file__).parents[2]
KEPT = Path("/var/cache/clusterctl-tests")
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def bare() -> Iterator[Machine]:
    """A machine on which nothing ever ran."""
    with machine() as made:
        yield made


@pytest.fixture(scope="session")
def built() -> Path:
    """The lab's caches, built on this machine when they are not there: it takes minutes."""
    paths = lab_paths()
    found = caches(paths, machine_source().suite)
    if not all(place.is_dir() for place in vars(found).values()):
        lifecycle.up(1, say=quiet)
        lifecycle.down(say=quiet)
    return paths.cache


@pytest.fixture
def seeded(bare: Machine, built: Path) -> Machine:
    """A machine whose lab has its caches, and else nothing."""
    bare.seed(built)
    return bare


@pytest.fixture
def clone(bare: Machine) -> Callable[[str], Path]:
    """Makes a clone of this checkout, as it is now, in a directory of that name."""

    def make(name: str = "clusterctl") -> Path:
        place = bare.directory / name
        shown = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for file in filter(None, shown.split("\0")):
            if (ROOT / file).is_file():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, place / file)
        return place

    return make


@pytest.fixture
def python(bare: Machine) -> Callable[..., None]:
    """Gives the machine a Python, and the wheels that clusterctl needs with it as its index."""

    def give(version: str = THIS_PYTHON) -> None:
        program = _real_program(version)
        if program is None:
            pytest.skip(f"no Python {version} here")
        bare.environment["PATH"] = f"{program.parent}:{bare.environment['PATH']}"
        bare.environment["PYTHON"] = program.name
        bare.environment["PIP_NO_INDEX"] = "1"
        bare.environment["PIP_FIND_LINKS"] = str(_wheels(program, version))

    return give


def _real_program(version: str) -> Path | None:
    """Of a Python: on PATH, or beside the one that runs this, where several are installed. None
    where there is none, or it lacks venv."""
    ask = "import ensurepip, venv, sys; print(sys.base_prefix)"
    beside = sorted(Path(sys.base_prefix).parent.glob(f"*{version}*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *beside):
        if candidate is None:
            continue
        told = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        # PATH may have led to a shim.
        program = Path(told.stdout.strip()) / "bin" / f"python{version}"
        if told.returncode == 0 and program.is_file():
            return program
    return None


def _wheels(python: Path, version: str) -> Path:
    """Downloaded once, by the lock file; and what builds clusterctl itself."""
    lock = ROOT / "requirements" / "run.txt"
    builds = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    place = KEPT / f"wheels-{version}-{content_key(lock.read_bytes(), *builds)}"

    def download(directory: Path) -> None:
        for words in (["--require-hashes", "-r", str(lock)], builds):
            argv = [python, "-m", "pip", "download", "-q", "-d", directory, *words]
            subprocess.run(list(map(str, argv)), check=True)

    cached_directory(place, download)
    return place
