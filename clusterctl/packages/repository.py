"""Package repositories to add to hosts, and the keys that sign them. Pure.

Addresses and layouts: NVIDIA's installation guide of the container toolkit, and Docker's
installation pages for Debian, Ubuntu, RHEL, CentOS and Fedora.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clusterctl.packages.target import PackageSystem

NVIDIA_URL = "https://nvidia.github.io/libnvidia-container"
DOCKER_URL = "https://download.docker.com/linux"

NVIDIA_KEYS = frozenset({"C95B321B61E88C1809C4F759DDCAE044F796ECB0"})
DOCKER_APT_KEYS = frozenset({"9DC858229FC7DD38854AE2D88D81803C0EBFCD88"})
# Fingerprints of the keys that sign today's repositories
DOCKER_RPM_KEYS = frozenset({"060A61C51B558A7F742B77AAC52FEB6B621E9F35"})

APT_KEYRINGS = "/etc/apt/keyrings"
RPM_KEYS = "/etc/pki/rpm-gpg"


@dataclass(frozen=True)
class Repository:
    """A signed repository, for one release of a system."""

    name: str  # Used in the names of its files on hosts
    url: str
    key_url: str
    # The key must have one of these; empty for a key given by the user
    fingerprints: frozenset[str]
    suite: str = ""  # apt: `bookworm stable`, or `/` for a repository without releases
    signed_packages: bool = True  # dnf: the packages are signed, not only their lists
    key_file: Path | None = None  # The user's own key, on the operator's machine


def nvidia(target: PackageSystem, url: str | None = None, key: Path | None = None) -> Repository:
    """Return the repository of NVIDIA's container toolkit, the same for all releases."""
    base = (url or NVIDIA_URL).rstrip("/")
    keys = frozenset[str]() if key else NVIDIA_KEYS
    name = "nvidia-container-toolkit"
    if target.family == "apt":
        return Repository(
            name, f"{base}/stable/deb/$(ARCH)", f"{base}/gpgkey", keys, "/", key_file=key
        )
    return Repository(
        name, f"{base}/stable/rpm/$basearch", f"{base}/gpgkey", keys,
        signed_packages=False, key_file=key,
    )  # fmt: skip


def docker(target: PackageSystem, url: str | None = None, key: Path | None = None) -> Repository:
    """Return the repository of Docker's own packages. Rocky and AlmaLinux use CentOS's."""
    base = (url or DOCKER_URL).rstrip("/")
    system = "centos" if target.system in ("rocky", "almalinux") else target.system
    if target.family == "apt":
        keys = frozenset[str]() if key else DOCKER_APT_KEYS
        return Repository(
            "docker", f"{base}/{system}", f"{base}/{system}/gpg", keys,
            f"{target.codename} stable", key_file=key,
        )  # fmt: skip
    keys = frozenset[str]() if key else DOCKER_RPM_KEYS
    return Repository(
        "docker", f"{base}/{system}/{target.version}/$basearch/stable", f"{base}/{system}/gpg",
        keys, key_file=key,
    )  # fmt: skip


def key_path(repository: Repository, target: PackageSystem) -> str:
    """Return the key's path on hosts. apt reads armored keys only from files that end in .asc."""
    if target.family == "apt":
        return f"{APT_KEYRINGS}/clusterctl-{repository.name}.asc"
    return f"{RPM_KEYS}/RPM-GPG-KEY-clusterctl-{repository.name}"


def source_path(repository: Repository, target: PackageSystem) -> str:
    if target.family == "apt":
        return f"/etc/apt/sources.list.d/clusterctl-{repository.name}.list"
    return f"/etc/yum.repos.d/clusterctl-{repository.name}.repo"


def source_text(repository: Repository, target: PackageSystem) -> str:
    """Return the content of `source_path`; the key is trusted for this repository only."""
    key = key_path(repository, target)
    if target.family == "apt":
        line = f"deb [signed-by={key}] {repository.url} {repository.suite}"
        return f"# Written by clusterctl.\n{line}\n"
    packages, lists = (1, 0) if repository.signed_packages else (0, 1)
    return (
        f"# Written by clusterctl.\n[clusterctl-{repository.name}]\nname={repository.name}\n"
        f"baseurl={repository.url}\nenabled=1\ngpgcheck={packages}\nrepo_gpgcheck={lists}\n"
        f"gpgkey=file://{key}\n"
    )
