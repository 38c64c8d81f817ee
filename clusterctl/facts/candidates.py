"""Select a host's interfaces that can carry a cluster's traffic; explain the others. Pure.

NCCL's own choice would take any running interface, including container bridges and VPNs; a host
that reaches its peers through Wi-Fi works until the Wi-Fi drops.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface, ip_address

from clusterctl.facts.model import HostFacts, NicFacts

# Name prefixes of interfaces that programs create: they have addresses, but reach no other host of
# the cluster at full speed
_MADE_BY = {
    "Docker": ("docker", "br-"),
    "a container engine": ("veth", "podman", "lxc", "lxd"),
    "libvirt": ("virbr", "vnet"),
    "Kubernetes": ("cni", "flannel", "cali", "kube"),
    "a VPN": ("tailscale", "wg", "zt", "tun", "tap"),
}


@dataclass(frozen=True)
class Candidate:
    """An interface with the properties that a choice depends on."""

    nic: str
    addresses: tuple[IPv4Interface, ...]
    speed: int | None  # Mbit/s; None if unknown, as for virtual interfaces
    rdma: tuple[str, ...]  # Active RDMA devices behind it
    numa_node: int | None
    near_gpus: bool  # On a GPU's NUMA node, if the host has several nodes
    default_route: bool
    mtu: int

    def __str__(self) -> str:
        """Format `100 Gbit/s, MTU 9000, RDMA mlx5_0, NUMA node 0 with GPUs`."""
        parts = [speed_text(self.speed), f"MTU {self.mtu}"]
        if self.rdma:
            parts.append(f"RDMA {' '.join(self.rdma)}")
        if self.numa_node is not None:
            whose = " with GPUs" if self.near_gpus else ""
            parts.append(f"NUMA node {self.numa_node}{whose}")
        if self.default_route:
            parts.append("default route")
        return ", ".join(parts)


@dataclass(frozen=True)
class Rejected:
    nic: str
    reason: str


def speed_text(speed: int | None) -> str:
    """Format Mbit/s: `100 Gbit/s`, `2.5 Gbit/s`, `100 Mbit/s`, `speed not known`."""
    if speed is None:
        return "speed not known"
    return f"{speed / 1000:g} Gbit/s" if speed >= 1000 else f"{speed} Mbit/s"


def candidates(facts: HostFacts) -> tuple[Candidate, ...]:
    """Return the usable interfaces, in the order in which the host lists them."""
    return tuple(as_candidate(facts, nic) for nic in facts.nics if _objection(facts, nic) is None)


def rejected(facts: HostFacts) -> tuple[Rejected, ...]:
    """Return all other interfaces but the loopback, with the reason."""
    objections = ((nic, _objection(facts, nic)) for nic in facts.nics if nic.kind != "loopback")
    return tuple(Rejected(nic.name, reason) for nic, reason in objections if reason)


def _objection(facts: HostFacts, nic: NicFacts) -> str | None:
    if reason := _own_objection(facts, nic):
        return reason
    if _over_physical(facts, nic):
        return None
    if nic.kind == "bridge" and not nic.lower:
        return "a bridge without members"
    # A network namespace or container has no physical interface: use its virtual ones.
    if any(_over_physical(facts, one) and not _own_objection(facts, one) for one in facts.nics):
        return "virtual, and there are physical ones"
    return None


def _own_objection(facts: HostFacts, nic: NicFacts) -> str | None:
    """Return why the interface cannot be used, judging it alone; None if it can."""
    if nic.kind == "loopback":
        return "the loopback"
    for maker, prefixes in _MADE_BY.items():
        if nic.name.startswith(prefixes):
            return f"made by {maker}"
    if nic.state not in ("up", "unknown"):
        return "down"
    if not _ipv4(nic):
        above = (upper for upper in map(facts.nic, nic.upper) if upper and _ipv4(upper))
        if bond := next(above, None):
            return f"part of {bond.name}"
        if ipv6_addresses(nic):
            return "has IPv6 only"
        return "has a link-local address only" if nic.addresses else "has no address"
    return "wireless" if nic.kind == "wlan" else None


def _over_physical(facts: HostFacts, nic: NicFacts) -> bool:
    """Whether the NIC is physical, or a bond, VLAN or bridge with a physical interface below it."""
    if nic.kind in ("bond", "vlan", "bridge"):
        return any(_over_physical(facts, lower) for lower in _lowers(facts, nic))
    return nic.kind == "physical"


def _lowers(facts: HostFacts, nic: NicFacts) -> list[NicFacts]:
    return [lower for lower in map(facts.nic, nic.lower) if lower is not None]


def _ipv4(nic: NicFacts) -> tuple[IPv4Interface, ...]:
    """Global addresses, without link-local ones (169.254.0.0/16), whatever their scope."""
    found = (
        IPv4Interface(f"{address.ip}/{address.prefix}")
        for address in nic.addresses
        if address.scope == "global" and ":" not in address.ip
    )
    return tuple(interface for interface in found if not interface.is_link_local)


def ipv6_addresses(nic: NicFacts) -> tuple[str, ...]:
    """Global IPv6 addresses of the interface."""
    return tuple(
        address.ip
        for address in nic.addresses
        if address.scope == "global" and ip_address(address.ip).version == 6
    )


def as_candidate(facts: HostFacts, nic: NicFacts) -> Candidate:
    """Build a Candidate, even from an unusable interface: the inventory may name any."""
    numa = _numa_node(facts, nic)
    return Candidate(
        nic=nic.name,
        addresses=_ipv4(nic),
        speed=_speed(facts, nic),
        rdma=_rdma(facts, nic),
        numa_node=numa,
        near_gpus=numa is not None and numa in facts.gpu_numa_nodes,
        default_route=facts.default_nic == nic.name,
        mtu=nic.mtu,
    )


def speed_of(facts: HostFacts, name: str) -> int | None:
    """Mbit/s of an interface; None if unknown."""
    nic = facts.nic(name)
    return None if nic is None else _speed(facts, nic)


def _speed(facts: HostFacts, nic: NicFacts) -> int | None:
    """Mbit/s: of a bridge, its members' fastest; of IPoIB, its RDMA port's; of others, what they
    report. None for virtual ones, whose drivers report a made-up speed (veth: 10 Gbit/s)."""
    if nic.kind == "virtual":
        return None
    if nic.speed is not None and nic.kind != "bridge":
        return nic.speed
    below = [speed for lower in _lowers(facts, nic) if (speed := _speed(facts, lower))]
    rates = [
        round(port.rate)
        for device in facts.rdma
        if nic.name in device.nics
        for port in device.ports
        if port.active and port.rate
    ]
    return max(below, default=None) or max(rates, default=None)


def _rdma(facts: HostFacts, nic: NicFacts) -> tuple[str, ...]:
    own = [device.name for device in facts.rdma if device.active and nic.name in device.nics]
    below = [name for lower in _lowers(facts, nic) for name in _rdma(facts, lower)]
    return tuple(dict.fromkeys([*own, *below]))


def _numa_node(facts: HostFacts, nic: NicFacts) -> int | None:
    """The interface's NUMA node; for a bond or VLAN, the one that all interfaces below it share."""
    if nic.numa_node is not None:
        return nic.numa_node
    below = {_numa_node(facts, lower) for lower in _lowers(facts, nic)}
    return below.pop() if len(below) == 1 else None
