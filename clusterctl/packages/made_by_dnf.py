"""Download packages of a RHEL-like release, with dependencies, by the local dnf.

dnf resolves against an empty root, so that packages installed on this machine do not count. Hosts
install only those files whose package they lack.
"""

from __future__ import annotations

from pathlib import Path

from clusterctl import deadlines
from clusterctl.packages import local_command
from clusterctl.packages.repository import docker, key_path, nvidia, source_text
from clusterctl.packages.target import ENGINE_OF_DOCKER, TOOLKIT, BundleRequest, python_package
from clusterctl.packages.vendor_keys import vendor_key

MACHINES_REPOSITORIES = "/etc/yum.repos.d"


def download(wanted: BundleRequest, work: Path) -> list[Path]:
    """Return the .rpm files, in a directory below `work`. Raises StepFailed with dnf's message."""
    repositories = work / "repositories"
    repositories.mkdir()
    vendors = [docker(wanted.target, wanted.docker_url, wanted.docker_key)]
    if wanted.toolkit:
        vendors.append(nvidia(wanted.target, wanted.nvidia_url, wanted.nvidia_key))
    for repository in vendors:
        # The same text that hosts get, but with the key in a file of this run.
        key = work / f"{repository.name}.asc"
        key.write_bytes(vendor_key(repository))
        text = source_text(repository, wanted.target)
        text = text.replace(key_path(repository, wanted.target), str(key))
        (repositories / f"{repository.name}.repo").write_text(text)
    own = f",{MACHINES_REPOSITORIES}"
    if wanted.mirror:  # the URL of one repository, such as .../9/BaseOS/x86_64/os
        own = ""
        signed = f"gpgcheck=1\ngpgkey=file://{wanted.keyring}" if wanted.keyring else "gpgcheck=0"
        (repositories / "mirror.repo").write_text(
            f"[clusterctl-mirror]\nname=mirror\nbaseurl={wanted.mirror}\nenabled=1\n{signed}\n"
        )
    files = work / "rpms"
    dnf = [
        "dnf",
        "--assumeyes",
        f"--installroot={work / 'root'}",
        f"--releasever={wanted.target.version}",
        f"--forcearch={wanted.architecture}",
        f"--setopt=reposdir={repositories}{own}",
        f"--setopt=cachedir={work / 'cache'}",
        "--setopt=install_weak_deps=False",
        "--setopt=skip_if_unavailable=False",
    ]
    toolkit = [f"{name}-{wanted.toolkit}" for name in TOOLKIT] if wanted.toolkit else []
    names = [python_package(wanted.target), *ENGINE_OF_DOCKER, *toolkit]
    local_command.run(
        [*dnf, "install", "--downloadonly", f"--downloaddir={files}", *names],
        timeout=deadlines.PACKAGES_DOWNLOAD,
    )
    return sorted(files.glob("*.rpm"))
