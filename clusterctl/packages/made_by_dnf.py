"""Packages of a RHEL-like release with all they need, by this machine's dnf.

dnf resolves against an empty root, so that what this machine has installed does not count. Hosts
install of the files only those whose package they lack.
"""

from __future__ import annotations

from pathlib import Path

from clusterctl.packages import local_command
from clusterctl.packages.repository import docker, nvidia
from clusterctl.packages.wanted import ENGINE_OF_DOCKER, TOOLKIT, Wanted


def download(wanted: Wanted, work: Path) -> list[Path]:
    """The .rpm files, in a directory below `work`. Raises StepFailed with dnf's own words."""
    files = work / "rpms"
    local_command.run([*_dnf(wanted, work, files), *_names(wanted)], timeout=3600.0)
    return sorted(files.glob("*.rpm"))


def _dnf(wanted: Wanted, work: Path, files: Path) -> list[str]:
    repositories = [docker(wanted.target, wanted.docker_url, wanted.docker_key)]
    if wanted.toolkit:
        repositories.append(nvidia(wanted.target, wanted.nvidia_url, wanted.nvidia_key))
    extra = [f"--repofrompath=clusterctl-{each.name},{each.url}" for each in repositories]
    keys = [
        f"--setopt=clusterctl-{each.name}.gpgkey={each.key_file or each.key_url}"
        for each in repositories
    ]
    mirror = [f"--repofrompath=clusterctl-mirror,{wanted.mirror}"] if wanted.mirror else []
    return [
        "dnf",
        "--assumeyes",
        f"--installroot={work / 'root'}",
        f"--releasever={wanted.target.version}",
        f"--forcearch={wanted.architecture}",
        "--setopt=install_weak_deps=False",
        *mirror,
        *extra,
        *keys,
        "install",
        "--downloadonly",
        f"--downloaddir={files}",
    ]


def _names(wanted: Wanted) -> list[str]:
    toolkit = [f"{name}-{wanted.toolkit}" for name in TOOLKIT] if wanted.toolkit else []
    return [*ENGINE_OF_DOCKER, *toolkit]
