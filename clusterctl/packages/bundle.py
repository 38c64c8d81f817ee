"""Package bundles: a directory, or a tar of one, on the operator's machine.

A bundle made by `clusterctl packages bundle` has a manifest and SHA256SUMS; a directory filled by
hand with .deb or .rpm files, or with Docker's static archive, needs neither. One directory may
contain several bundles, each in its own subdirectory.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.packages.target import DEBIAN_ARCHITECTURES, PackageSystem

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
_PACKAGE = re.compile(r".+\.(deb|rpm)|docker-[0-9][0-9.]*\.tgz")
_STATIC = re.compile(r"docker-([0-9][0-9.]*)\.tgz")
_TOOLKIT = re.compile(r"nvidia-container-toolkit[-_]([0-9][0-9.]*-[0-9]+)[._]")
_KEPT_FILES = 4  # Files cached in memory, for hosts that are served at the same time


@dataclass(frozen=True)
class PackageFile:
    name: str
    size: int  # Bytes
    sha256: str  # Empty if SHA256SUMS does not have it


@dataclass(frozen=True)
class Bundle:
    """Package files for one kind of host."""

    path: Path
    files: tuple[PackageFile, ...]
    manifest: Mapping[str, object] = field(default_factory=dict)
    inside: str = ""  # Directory within a tar
    sums: str = ""  # SHA-256 of its SHA256SUMS; empty without one

    @property
    def system(self) -> str:
        """The hosts' system, such as `debian12`; empty if the bundle has no manifest."""
        return str(self.manifest.get("for", ""))

    @property
    def architecture(self) -> str:
        return str(self.manifest.get("architecture", ""))

    @property
    def toolkit(self) -> str | None:
        """The version of NVIDIA's toolkit in it, or None."""
        found = (_TOOLKIT.match(file.name) for file in self.files)
        return next((match[1] for match in found if match), None)

    @property
    def static_engine(self) -> PackageFile | None:
        """Docker's static archive, or None."""
        return next((file for file in self.files if _STATIC.fullmatch(file.name)), None)

    def is_for(self, target: PackageSystem, architecture: str) -> bool:
        """Whether hosts of that system can use it, judging by its manifest and file names."""
        if self.architecture not in ("", architecture):
            return False
        if self.system:
            return self.system == target.name
        names = [file.name for file in self.packages(".deb" if target.family == "apt" else ".rpm")]
        other = [name for arch, name in DEBIAN_ARCHITECTURES.items() if arch != architecture]
        foreign = any(f"_{arch}." in name for name in names for arch in other)
        return self.static_engine is not None or (bool(names) and not foreign)

    def packages(self, suffix: str) -> tuple[PackageFile, ...]:
        """Files whose names end in `suffix`: `.deb` or `.rpm`."""
        return tuple(file for file in self.files if file.name.endswith(suffix))

    def read(self, file: PackageFile) -> bytes:
        """Return the file's content. Raises UsageError if it is missing or fails its checksum."""
        try:
            data = _content(self.path, f"{self.inside}{file.name}")
        except _UNREADABLE as error:
            raise _unreadable(self.path, error) from error
        if file.sha256 and hashlib.sha256(data).hexdigest() != file.sha256:
            raise UsageError(
                f"{file.name} in {self.path} is damaged: {SUMS} has a different checksum",
                hint="copy the bundle again, or recreate it: clusterctl packages bundle --help",
            )
        return data


@lru_cache(maxsize=_KEPT_FILES)
def _content(path: Path, name: str) -> bytes:
    if path.is_dir():
        return (path / name).read_bytes()
    with tarfile.open(path) as tar:
        member = tar.extractfile(name)
        return member.read() if member else b""


def open_bundles(path: Path | None, sums: Sequence[str] = ()) -> tuple[Bundle, ...]:
    """Return the bundles at `path`; none without a path. `sums`: the SHA-256 of every allowed
    SHA256SUMS; empty for any.

    Raises UsageError if it is missing or unreadable, or its SHA256SUMS differ.
    """
    if path is None:
        return ()
    try:
        bundles = tuple(_in_directory(path) if path.is_dir() else _in_tar(path))
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    if not bundles:
        raise UsageError(
            f"there are no packages at {path}: neither .deb nor .rpm files nor docker-VERSION.tgz",
            hint=_HOW_MADE,
        )
    for bundle in bundles:
        if sums and bundle.sums not in sums:
            found = f"a {SUMS} with the SHA-256 {bundle.sums}" if bundle.sums else f"no {SUMS}"
            raise UsageError(
                f"{path} is not the bundle of the inventory: it has {found}",
                hint="if you made it yourself, put its SHA-256 into packages.sums",
            )
    return bundles


# Errors of reading files and tars; a truncated tar may raise any of them
_UNREADABLE = (
    OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, KeyError,
)  # fmt: skip

_HOW_MADE = (
    "make them on a connected machine: clusterctl packages bundle --for debian12 -o DIRECTORY"
)


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"the packages at {path} cannot be read: {error}", hint=_HOW_MADE)


def _in_directory(path: Path) -> Iterator[Bundle]:
    for directory in (path, *sorted(child for child in path.iterdir() if child.is_dir())):
        sizes = {
            file.name: file.stat().st_size
            for file in sorted(directory.iterdir())
            if _PACKAGE.fullmatch(file.name)
        }
        texts = [
            (directory / name).read_text() if (directory / name).is_file() else ""
            for name in (MANIFEST, SUMS)
        ]
        if sizes:
            yield _bundle(directory, sizes, *texts)


def _in_tar(path: Path) -> Iterator[Bundle]:
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar.getmembers() if member.isfile()}
        for parent in dict.fromkeys(name.rpartition("/")[0] for name in members):
            inside = f"{parent}/" if parent else ""
            own = {
                name.removeprefix(inside): member
                for name, member in members.items()
                if name.rpartition("/")[0] == parent
            }
            sizes = {name: m.size for name, m in own.items() if _PACKAGE.fullmatch(name)}
            opened = [
                tar.extractfile(own[name]) if name in own else None for name in (MANIFEST, SUMS)
            ]
            texts = [file.read().decode() if file else "" for file in opened]
            if sizes:
                yield _bundle(path, sizes, *texts, inside=inside)


def _bundle(
    path: Path, sizes: Mapping[str, int], manifest: str, sums: str, *, inside: str = ""
) -> Bundle:
    """Build a Bundle. Raises ValueError if the manifest or SHA256SUMS is malformed, or if the sums
    do not match the packages exactly."""
    rows = (line.split() for line in sums.splitlines() if line)
    known = {name.lstrip("*"): digest for digest, name in rows}
    if missing := {name for name in known if _PACKAGE.fullmatch(name)} - sizes.keys():
        raise ValueError(f"{SUMS} names {min(missing)}, which is missing")
    if sums and (extra := sizes.keys() - known.keys()):
        raise ValueError(f"{min(extra)} is not named in {SUMS}")
    files = tuple(PackageFile(name, size, known.get(name, "")) for name, size in sizes.items())
    described = json.loads(manifest) if manifest else {}
    if not isinstance(described, dict):
        raise ValueError(f"{MANIFEST} does not describe a bundle")  # noqa: TRY004 - of the file
    digest = hashlib.sha256(sums.encode()).hexdigest() if sums else ""
    return Bundle(path, files, described, inside, digest)


def fitting(
    bundles: Sequence[Bundle], target: PackageSystem, architecture: str, *, host: str
) -> Bundle:
    """Return the bundle for that system. Raises RequirementsNotMet if there is none."""
    for bundle in bundles:
        if bundle.is_for(target, architecture):
            return bundle
    there = ", ".join(f"{b.system or 'unnamed'} {b.architecture}".strip() for b in bundles)
    raise RequirementsNotMet(
        f"needs packages for {target.name} {architecture}, but the bundle is for {there}",
        host=host,
        hint=f"clusterctl packages bundle --for {target.name} -o DIRECTORY",
    )
