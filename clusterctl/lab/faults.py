"""Inject faults into the lab, by host name, and undo them."""

from __future__ import annotations

from clusterctl.lab import hosts, network, nspawn
from clusterctl.lab.paths import exclusive, lab_paths


def power_off(name: str) -> bool:
    """Kill all processes of a host at once, like a power loss. Return whether it was running."""
    paths = lab_paths()
    with exclusive(paths.lock):
        return nspawn.halt(hosts.host_by_name(name), paths.host(name))


def power_on(name: str, *, wait: bool = True) -> bool:
    """Boot a host from its disk, and wait for its sshd. Return whether it was off."""
    paths = lab_paths()
    with exclusive(paths.lock):
        return hosts.power_on(hosts.host_by_name(name), paths, wait=wait)


def pull_cable(name: str, nic: str) -> None:
    """Disconnect a NIC (by its name in the host) from its network."""
    network.set_cable(hosts.host_by_name(name).nic(nic), plugged=False)


def plug_cable(name: str, nic: str) -> None:
    """Undo `pull_cable`."""
    network.set_cable(hosts.host_by_name(name).nic(nic), plugged=True)
