"""Requirements of the lab on this machine: root, Debian or Ubuntu, a few packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from clusterctl.errors import RequirementsNotMet

PACKAGE_OF_COMMAND: Mapping[str, str] = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "apt-ftparchive": "apt-utils",
}

# Packages to install on a fresh machine before `lab up`.
REQUIRED_PACKAGES: tuple[str, ...] = tuple(sorted(set(PACKAGE_OF_COMMAND.values())))


class LabUnavailable(RequirementsNotMet):
    """This machine cannot run the lab in its current state."""


def read_os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """Return the keys of os-release with values unquoted; empty if the file is missing."""
    if not path.is_file():
        return {}
    pairs = (line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    return {key: value.strip('"') for key, value in pairs}


def missing_packages() -> tuple[str, ...]:
    """Return packages whose commands are not found, in the order of `REQUIRED_PACKAGES`."""
    # root's PATH may lack sbin after `su`.
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    absent = {
        package
        for command, package in PACKAGE_OF_COMMAND.items()
        if shutil.which(command, path=path) is None
    }
    return tuple(package for package in REQUIRED_PACKAGES if package in absent)


def check_machine(*, root: bool = True) -> None:
    """Raise LabUnavailable, with a hint, when the lab cannot run here. Without `root` the user is
    not checked: `status` needs no root."""
    release = read_os_release()
    if not {"debian", "ubuntu"} & {release.get("ID", ""), *release.get("ID_LIKE", "").split()}:
        raise LabUnavailable(
            f"the lab needs Debian or Ubuntu; this is {release.get('PRETTY_NAME', 'neither')}",
            hint="run it in a Debian virtual machine, as root",
        )
    if root and os.geteuid() != 0:
        raise LabUnavailable("the lab needs root to create hosts", hint="sudo clusterctl lab up")
    if packages := missing_packages():
        raise LabUnavailable(
            f"the lab needs packages that are not installed: {', '.join(packages)}",
            hint=f"apt-get install --no-install-recommends {' '.join(packages)}",
        )
