"""Systems that packages are made for: package manager and release. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Family = Literal["apt", "dnf"]

CODENAMES = {
    "debian11": "bullseye", "debian12": "bookworm", "debian13": "trixie",
    "ubuntu20.04": "focal", "ubuntu22.04": "jammy", "ubuntu24.04": "noble",
    "ubuntu26.04": "resolute",
}  # fmt: skip
DNF_FAMILY = frozenset({"rhel", "centos", "fedora", "rocky", "almalinux"})
APT_FAMILY = frozenset({"debian", "ubuntu"})

DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class PackageSystem:
    """A system and its release: `debian` `12`, `rocky` `9`."""

    system: str
    version: str
    codename: str = ""

    @property
    def name(self) -> str:
        return f"{self.system}{self.version}"

    @property
    def family(self) -> Family:
        return "dnf" if self.system in DNF_FAMILY else "apt"


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
    """Return the system that /etc/os-release names; None for one without apt and dnf.

    The release of RHEL and its derivatives is the major version: 9.5 uses packages for 9.
    """
    names = (identifier, *like)
    if identifier in DNF_FAMILY or (not APT_FAMILY & set(names) and DNF_FAMILY & set(names)):
        system = identifier if identifier in DNF_FAMILY else "rhel"
        return PackageSystem(system, version.partition(".")[0])
    system = next((name for name in names if name in APT_FAMILY), "")
    return PackageSystem(system, version, codename) if system else None


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
    **{(system, "8"): "python39" for system in ("rhel", "centos", "rocky", "almalinux")},
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
        """Whether the engine is from Docker's packages: requested, or the only ones there are."""
        return self.docker_url is not None or self.target.family == "dnf"
