"""Packages of a RHEL-like release with all they need, by this machine's dnf.

dnf resolves against an empty root, so that what this machine has installed does not count. Hosts
install of the files only those whose package they lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterctl import deadlines
from clusterctl.packages import local_command
from clusterctl.packages.repository import Repository, docker, key_path, nvidia, source_text
from clusterctl.packages.target import ENGINE_OF_DOCKER, TOOLKIT, BundleRequest, python_package
from clusterctl.packages.vendor_keys import vendor_key

MACHINES_REPOSITORIES = "/etc/yum.repos.d"


def download(wanted: BundleRequest, work: Path) -> list[Path]:
    """The .rpm files, in a directory below `work`. Raises StepFailed with dnf's own words."""
    files = work / "rpms"
    argv = [*_dnf(wanted, work), "install", "--downloadonly", f"--downloaddir={files}"]
    local_command.run([*argv, *_names(wanted)], timeout=deadlines.PACKAGES_DOWNLOAD)
    return sorted(files.glob("*.rpm"))


def _dnf(wanted: BundleRequest, work: Path) -> list[str]:
    """dnf with the system's own repositories, this machine's or a mirror's, and the vendors'."""
    repositories = work / "repositories"
    repositories.mkdir()
    for repository in _vendors(wanted):
        (repositories / f"{repository.name}.repo").write_text(_source(wanted, repository, work))
    own = MACHINES_REPOSITORIES
    if wanted.mirror:
        own = ""
        (repositories / "mirror.repo").write_text(_mirror(wanted))
    return [
        "dnf",
        "--assumeyes",
        f"--installroot={work / 'root'}",
        f"--releasever={wanted.target.version}",
        f"--forcearch={wanted.architecture}",
        f"--setopt=reposdir={repositories}{',' if own else ''}{own}",
        f"--setopt=cachedir={work / 'cache'}",
        "--setopt=install_weak_deps=False",
        "--setopt=skip_if_unavailable=False",
    ]


def _vendors(wanted: BundleRequest) -> Iterator[Repository]:
    yield docker(wanted.target, wanted.docker_url, wanted.docker_key)
    if wanted.toolkit:
        yield nvidia(wanted.target, wanted.nvidia_url, wanted.nvidia_key)


def _source(wanted: BundleRequest, repository: Repository, work: Path) -> str:
    """What hosts get too, with the key in a file of this run."""
    key = work / f"{repository.name}.asc"
    key.write_bytes(vendor_key(repository))
    return source_text(repository, wanted.target).replace(
        key_path(repository, wanted.target), str(key)
    )


def _mirror(wanted: BundleRequest) -> str:
    """`mirror` is a repository itself, such as .../9/BaseOS/x86_64/os."""
    signed = f"gpgcheck=1\ngpgkey=file://{wanted.keyring}" if wanted.keyring else "gpgcheck=0"
    return f"[clusterctl-mirror]\nname=mirror\nbaseurl={wanted.mirror}\nenabled=1\n{signed}\n"


def _names(wanted: BundleRequest) -> list[str]:
    toolkit = [f"{name}-{wanted.toolkit}" for name in TOOLKIT] if wanted.toolkit else []
    return [python_package(wanted.target), *ENGINE_OF_DOCKER, *toolkit]
