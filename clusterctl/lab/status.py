"""What the lab is right now, as the machine reports it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusterctl.lab import hosts, light, mirror, network, nspawn
from clusterctl.lab.layout import LabHost
from clusterctl.lab.paths import LabPaths


@dataclass(frozen=True)
class HostStatus:
    """One host. `cables` says of each NIC whether it is plugged in; `link_rate` is in bits/s."""

    name: str
    address: str
    powered: bool
    answers: bool
    cables: dict[str, bool]
    link_rate: int | None


@dataclass(frozen=True)
class LabStatus:
    """The lab: its hosts and what stands around them."""

    directory: Path
    hosts: tuple[HostStatus, ...]
    light_hosts: int
    mirror: bool
    image_archive: Path | None
    inventory: Path | None

    def document(self) -> dict[str, Any]:
        """The same for machines: nothing that JSON has not."""
        plain = asdict(self)
        paths = ("directory", "image_archive", "inventory")
        return {**plain, **{key: str(plain[key]) if plain[key] else None for key in paths}}

    def lines(self) -> list[str]:
        """The same for people."""
        if not self.hosts and not self.light_hosts:
            return ["there is no lab: clusterctl lab up"]
        around = [
            f"packages   {mirror.MIRROR_URL if self.mirror else 'not served'}",
            f"image      {self.image_archive or 'not built'}",
            f"inventory  {self.inventory or 'not written'}",
        ]
        if self.light_hosts:
            around.insert(0, f"light      {self.light_hosts} hosts")
        return [*map(_host_line, self.hosts), *around]


def observe(paths: LabPaths) -> LabStatus:
    """Look at the machine. Needs no lock, and changes nothing."""
    return LabStatus(
        directory=paths.root,
        hosts=tuple(_host(hosts.host_by_name(name)) for name in hosts.host_names(paths)),
        light_hosts=light.light_count(),
        mirror=bool(mirror.server_pids(paths.mirror)),
        image_archive=_existing(paths.image_archive),
        inventory=_existing(paths.inventory),
    )


def _host(host: LabHost) -> HostStatus:
    cables = network.cables()
    powered = nspawn.is_running(host)
    return HostStatus(
        name=host.name,
        address=host.address,
        powered=powered,
        answers=powered and hosts.ssh_answers(host),
        cables={nic.name: cables.get(nic.peer, False) for nic in host.nics},
        link_rate=network.link_rate(host),
    )


def _host_line(host: HostStatus) -> str:
    power = "off" if not host.powered else "up" if host.answers else "no answer"
    cables = ", ".join(
        f"{name} {'plugged' if plugged else 'unplugged'}" for name, plugged in host.cables.items()
    )
    rate = f", {host.link_rate // 10**6} Mbit/s" if host.link_rate else ""
    return f"{host.name:<9}  {host.address:<11}  {power:<9}  {cables}{rate}"


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None
