"""The systems that packages are for: which package manager, which release. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
class Target:
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


def target_named(name: str) -> Target:
    """`debian12`, `ubuntu24.04`, `rocky9`. Raises ValueError, naming what there is."""
    system = name.rstrip("0123456789.")
    version = name[len(system) :]
    if name in CODENAMES:
        return Target(system, version, CODENAMES[name])
    if system in DNF_FAMILY and version.isdigit():
        return Target(system, version)
    known = ", ".join([*CODENAMES, "rocky9, almalinux9, rhel9, centos9, fedora43 and their like"])
    raise ValueError(f"{name} is no system that packages can be bundled for: {known}")


def target_of(identifier: str, like: Iterable[str], version: str, codename: str) -> Target | None:
    """The system that /etc/os-release names; None for one that neither apt nor dnf serves.

    A release of RHEL and its like is its major version: 9.5 takes packages for 9.
    """
    names = (identifier, *like)
    if identifier in DNF_FAMILY or (not APT_FAMILY & set(names) and DNF_FAMILY & set(names)):
        system = identifier if identifier in DNF_FAMILY else "rhel"
        return Target(system, version.partition(".")[0])
    system = next((name for name in names if name in APT_FAMILY), "")
    return Target(system, version, codename) if system else None
