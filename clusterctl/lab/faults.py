"""Breaking the lab on purpose, by name, and mending it again."""

from __future__ import annotations

from clusterctl.lab import hosts
from clusterctl.lab.paths import exclusive, lab_paths


def power_off(name: str) -> bool:
    """Pull a host's plug: everything in it ends at once. Whether it was running."""
    paths = lab_paths()
    with exclusive(paths.lock):
        return hosts.power_off(hosts.host_by_name(name), paths)


def power_on(name: str, *, wait: bool = True) -> bool:
    """Boot a host from the disk it had, and wait for its sshd. Whether it was off."""
    paths = lab_paths()
    with exclusive(paths.lock):
        return hosts.power_on(hosts.host_by_name(name), paths, wait=wait)


def pull_cable(name: str, nic: str) -> None:
    """Cut a host's NIC (by the name it has there) off its network."""
    hosts.pull_cable(hosts.host_by_name(name), nic)


def plug_cable(name: str, nic: str) -> None:
    """Undo `pull_cable`."""
    hosts.plug_cable(hosts.host_by_name(name), nic)
