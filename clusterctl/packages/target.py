"""Systems that packages are built for: package manager and release. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clusterctl.published import table

Family = Literal["apt", "dnf"]

_SYSTEMS = table("systems")
CODENAMES: Mapping[str, str] = _SYSTEMS["codenames"]

# Directory of a system in Docker's package repository. Rebuilds of RHEL use CentOS's, under their
# own major version.
DOCKER_REPOSITORY: Mapping[str, str] = _SYSTEMS["docker_repository"]

# Systems that Docker does not make packages for, and their own package of the engine
OWN_ENGINE: Mapping[str, str] = _SYSTEMS["own_engine"]

APT_FAMILY = frozenset({"debian", "ubuntu"})
DNF_FAMILY = frozenset(DOCKER_REPOSITORY) - APT_FAMILY
DNF_LIKE = DNF_FAMILY | {"amzn"}

DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class PackageSystem:
    """A system and its release: `debian` `12`, `rocky` `9`; for an unknown derivative of RHEL or
    Fedora, its own name and version."""

    system: str
    version: str
    codename: str = ""

    @property
    def name(self) -> str:
        return f"{self.system}{self.version}"

    @property
    def family(self) -> Family:
        return "apt" if self.system in APT_FAMILY else "dnf"

    @property
    def known(self) -> bool:
        """Whether Docker's package repository has a directory for its releases."""
        return self.system in DOCKER_REPOSITORY and (self.family == "dnf" or bool(self.codename))


def target_named(name: str) -> PackageSystem:
    """Parse `debian12`, `ubuntu24.04`, `rocky9`. Raises ValueError with the known names."""
    system = name.rstrip("0123456789.")
    version = name[len(system) :]
    if name in CODENAMES:
        return PackageSystem(system, version, CODENAMES[name])
    if system in DNF_FAMILY and version.isdigit():
        return PackageSystem(system, version)
    known = ", ".join([*CODENAMES, "rocky9, almalinux9, rhel9, centos9, fedora43 and their like"])
    raise ValueError(f"{name} is not a system that packages can be bundled for: {known}")


def target_of(
    identifier: str, like: Iterable[str], version: str, codename: str
) -> PackageSystem | None:
    """Return the system that /etc/os-release names; None for one without apt or dnf.

    The release of RHEL and its rebuilds is the major version:

    9.5 uses packages for 9. The version of any other derivative says nothing about its parent's:
    Amazon Linux 2023 is not RHEL 2023. A derivative of Debian or Ubuntu gets its parent's release
    by codename, or none.
    """
    names = (identifier, *like)
    if identifier in DNF_FAMILY:
        return PackageSystem(identifier, version.partition(".")[0])
    if not APT_FAMILY & set(names) and DNF_LIKE & set(names):
        return PackageSystem(identifier, version)
    system = next((name for name in names if name in APT_FAMILY), "")
    if not system or identifier == system:
        return PackageSystem(system, version, codename) if system else None
    base = next((name for name, of in CODENAMES.items() if of == codename), "")
    if not base.startswith(system):
        return PackageSystem(system, version)
    return PackageSystem(system, base.removeprefix(system), codename)


ENGINE_OF_DISTRIBUTION = ("docker.io",)
# Since Debian 13 the client is a separate package, which docker.io only recommends
CLIENT_OF_DISTRIBUTION = "docker-cli"
FIREWALL = "nftables"  # For `network.firewall`

ENGINE_OF_DOCKER = ("docker-ce", "docker-ce-cli", "containerd.io")
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
TOOLKIT_VERSION = "1.19.1-1"  # The default for hosts without the toolkit


# Releases whose `python3` is older than 3.9, and their package of a newer one.
_NEWER_PYTHON = {
    ("ubuntu", "20.04"): "python3.9",
    **{(system, "8"): "python39" for system in DNF_FAMILY - {"fedora"}},
}


def python_package(target: PackageSystem) -> str:
    """Return the package of a Python 3.9 or newer with its standard library."""
    return _NEWER_PYTHON.get((target.system, target.version), "python3")


@dataclass(frozen=True)
class BundleRequest:
    target: PackageSystem
    architecture: str = "x86_64"  # As `uname -m` prints it on the hosts
    toolkit: str | None = TOOLKIT_VERSION  # Version; None for a bundle without NVIDIA's toolkit
    # Docker's repository, or a mirror; None for the distribution's engine, if it has one
    docker_url: str | None = None
    docker_key: Path | None = None
    nvidia_url: str | None = None
    nvidia_key: Path | None = None
    # URL of the distribution's packages; None: the sources of this machine
    mirror: str | None = None
    keyring: Path | None = None  # The distribution's keys; None: the keys that this machine trusts

    @property
    def by_docker(self) -> bool:
        """Whether to use Docker's packages: they were requested, or are the only ones."""
        return self.docker_url is not None or self.target.family == "dnf"
