"""What a bundle is to hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clusterctl.packages.target import Target

ENGINE_OF_DISTRIBUTION = ("docker.io",)
CLIENT_OF_DISTRIBUTION = "docker-cli"
"""From Debian 13 on the client is a package of its own, which docker.io only recommends."""
ENGINE_OF_DOCKER = ("docker-ce", "docker-ce-cli", "containerd.io")
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
TOOLKIT_VERSION = "1.19.1-1"
"""What hosts without the toolkit get, where nothing else is asked for."""


# Releases whose own `python3` is older than 3.9, and their package of a newer one.
_NEWER_PYTHON = {
    ("ubuntu", "20.04"): "python3.9",
    **{(system, "8"): "python39" for system in ("rhel", "centos", "rocky", "almalinux")},
}


def python_package(target: Target) -> str:
    """The package that brings a Python 3.9 or newer with its standard library."""
    return _NEWER_PYTHON.get((target.system, target.version), "python3")


@dataclass(frozen=True)
class Wanted:
    target: Target
    architecture: str = "x86_64"
    """As `uname -m` says on the hosts."""
    toolkit: str | None = TOOLKIT_VERSION
    """Version; None for a bundle without NVIDIA's toolkit."""
    docker_url: str | None = None
    """Docker's repository, or a mirror; None for the distribution's engine, where it has one."""
    docker_key: Path | None = None
    nvidia_url: str | None = None
    nvidia_key: Path | None = None
    mirror: str | None = None
    """Where the distribution's own packages are; None: where this machine gets its own from."""
    keyring: Path | None = None
    """The distribution's keys; None: those that this machine trusts."""

    @property
    def by_docker(self) -> bool:
        """Docker's own packages: asked for, or the only ones there are."""
        return self.docker_url is not None or self.target.family == "dnf"
