"""Make a bundle: packages with their dependencies, checksums, and a manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.packages import made_by_apt, made_by_dnf
from clusterctl.packages.bundle import MANIFEST, SUMS
from clusterctl.packages.target import BundleRequest

FORMAT = 1


@dataclass(frozen=True)
class Made:
    path: Path
    files: tuple[str, ...]
    size: int  # Bytes of all packages


def make(wanted: BundleRequest, output: Path, say: Callable[[str], None]) -> Made:
    """Make a bundle at `output`: a tar if its name ends in .tar, else a directory.

    `output` is created only when complete. Raises UsageError if `output` holds something else or
    cannot be written, or if this machine cannot make the bundle; StepFailed with the package
    manager's message.
    """
    _insist_on_room(output)
    tool = _tool(wanted)
    with tempfile.TemporaryDirectory(prefix="clusterctl-bundle-") as name:
        work = Path(name)
        say(f"downloading packages for {wanted.target.name} {wanted.architecture}")
        files = tool(wanted, work)
        bundle = work / "bundle"
        bundle.mkdir()
        # apt before 2.1 does not find files whose names contain the `%3a` of an epoch.
        names = [file.name.replace("%3a", "-") for file in files]
        for file, its_name in zip(files, names, strict=True):
            file.rename(bundle / its_name)
        _describe(wanted, bundle, names)
        size = sum((bundle / file).stat().st_size for file in names)
        try:
            _place(bundle, output)
        except OSError as error:
            raise _unwritable(output, error) from error
    return Made(output, tuple(names), size)


def _insist_on_room(output: Path) -> None:
    """Raise UsageError if `output` cannot be used, before hundreds of MB are downloaded."""
    packed = output.suffix == ".tar"
    if output.exists() and output.is_dir() == packed:
        kind = "a directory" if packed else "a file"
        raise UsageError(
            f"{output} is {kind}", hint="-o names a directory, or a file that ends in .tar"
        )
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise UsageError(f"{output} is a directory that holds other files", hint="name a new one")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(output, error) from error


def _unwritable(output: Path, error: OSError) -> UsageError:
    why = error.strerror or str(error)
    return UsageError(f"{output} cannot be written: {why}", hint=f"ls -ld {output.parent}")


def _tool(wanted: BundleRequest) -> Callable[[BundleRequest, Path], list[Path]]:
    by_apt = wanted.target.family == "apt"
    name = "apt-get" if by_apt else "dnf"
    if shutil.which(name) is None:
        raise UsageError(
            f"bundling packages for {wanted.target.name} needs {name}, which is not installed here",
            hint=f"run it on a connected machine with {name}, or in a container of that system",
        )
    return made_by_apt.download if by_apt else made_by_dnf.download


def _describe(wanted: BundleRequest, bundle: Path, names: Sequence[str]) -> None:
    sums = (hashlib.sha256((bundle / name).read_bytes()).hexdigest() for name in names)
    lines = [f"{digest}  {name}\n" for digest, name in zip(sums, names, strict=True)]
    (bundle / SUMS).write_text("".join(lines))
    manifest = {
        "format": FORMAT,
        "for": wanted.target.name,
        "architecture": wanted.architecture,
        "toolkit": wanted.toolkit,
    }
    (bundle / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _place(bundle: Path, output: Path) -> None:
    """Write to a temporary name beside `output`, then rename."""
    fresh = output.with_name(f".{output.name}.new")
    if output.suffix == ".tar":
        with tarfile.open(fresh, "w") as tar:
            for file in sorted(bundle.iterdir()):
                tar.add(file, file.name)
    else:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(bundle, fresh)
        shutil.rmtree(output, ignore_errors=True)
    fresh.rename(output)
