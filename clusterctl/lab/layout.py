"""Names and addresses of everything in the lab, from a host's number alone: no state.

    control network 10.77.0.0/24   bridge lab-control   controller .1, gpuN at .(10+N)
    fabric  network 10.78.0.0/24   bridge lab-fabric    controller .1, gpuN at .(10+N)
    light   network 10.79.0.0/22   bridge lab-light     controller .0.1, hosts from .0.10

NIC names differ from host to host, as in real clusters: code that works only if every
host has `eth0` must fail here.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from clusterctl.errors import UsageError

MAX_HOSTS = 20
MAX_LIGHT_HOSTS = 500
# Prefix of every bridge, link and namespace of the lab.
PREFIX = "lab-"

NIC_NAMES: tuple[tuple[str, str], ...] = (("eth0", "eth1"), ("ens2", "ens3"), ("eno1", "enp5s0"))


@dataclass(frozen=True)
class LabNetwork:
    """One network: a bridge that the controller is connected to in the same way as hosts."""

    name: str
    subnet: IPv4Network

    @property
    def bridge(self) -> str:
        """Name of the bridge, and of the controller's own interface on it."""
        return f"{PREFIX}{self.name}"

    @property
    def port(self) -> str:
        """The bridge's end of the controller's cable."""
        return f"{PREFIX}{self.name}-0"

    @property
    def controller(self) -> IPv4Address:
        return self.subnet.network_address + 1

    def interface(self, offset: int) -> IPv4Interface:
        """Return an address of this network with its prefix length."""
        return IPv4Interface(
            f"{self.subnet.network_address + offset}/{self.subnet.prefixlen}",
        )


CONTROL = LabNetwork("control", IPv4Network("10.77.0.0/24"))
FABRIC = LabNetwork("fabric", IPv4Network("10.78.0.0/24"))
LIGHT = LabNetwork("light", IPv4Network("10.79.0.0/22"))


@dataclass(frozen=True)
class Nic:
    """A cable: `name` inside the host, `peer` on the bridge."""

    name: str
    peer: str
    network: LabNetwork
    address: IPv4Interface


@dataclass(frozen=True)
class LabHost:
    """One host: its name, its namespace and its NICs, the control NIC first."""

    name: str
    namespace: str
    nics: tuple[Nic, ...]

    @property
    def address(self) -> str:
        return str(self.nics[0].address.ip)

    def nic(self, name: str) -> Nic:
        """Return the NIC of that name. Raises UsageError, listing the host's NICs."""
        for nic in self.nics:
            if nic.name == name:
                return nic
        known = ", ".join(nic.name for nic in self.nics)
        raise UsageError(f"no NIC {name!r}; there are {known}", host=self.name)


def lab_host(number: int) -> LabHost:
    """Return the host gpu<number>, counted from 1."""
    control, fabric = NIC_NAMES[(number - 1) % len(NIC_NAMES)]
    name = f"gpu{number}"
    return LabHost(
        name,
        f"{PREFIX}{name}",
        (
            Nic(control, f"{PREFIX}{name}-c", CONTROL, CONTROL.interface(10 + number)),
            Nic(fabric, f"{PREFIX}{name}-f", FABRIC, FABRIC.interface(10 + number)),
        ),
    )


def lab_hosts(count: int) -> tuple[LabHost, ...]:
    """Return gpu1 to gpu<count>. Raises UsageError unless 1 <= count <= MAX_HOSTS."""
    _check_count(count, MAX_HOSTS)
    return tuple(lab_host(number) for number in range(1, count + 1))


def light_host(number: int) -> LabHost:
    """Return the light host light<number>, which has one NIC."""
    name = f"light{number}"
    nic = Nic("eth0", f"{PREFIX}{name}", LIGHT, LIGHT.interface(9 + number))
    return LabHost(name, f"{PREFIX}{name}", (nic,))


def light_hosts(count: int) -> tuple[LabHost, ...]:
    """Return light1 to light<count>. Raises UsageError unless 1 <= count <= MAX_LIGHT_HOSTS."""
    _check_count(count, MAX_LIGHT_HOSTS)
    return tuple(light_host(number) for number in range(1, count + 1))


def _check_count(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise UsageError(f"the lab can have 1 to {most} such hosts, not {count}")
