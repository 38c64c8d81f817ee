"""Select a host's interfaces that can carry a cluster's traffic; explain the others. Pure.

Left to itself, NCCL may pick any running interface, including container bridges and VPNs; and a
host that reaches its peers over Wi-Fi works until the Wi-Fi drops.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Interface, ip_address

from clusterctl.facts.model import HostFacts, NicFacts

VPN = "a VPN"
WIRELESS = "wireless"

# Names of interfaces that programs create. They have addresses, but reach no other host of the
# cluster at full speed. One that stands on hardware is the host's own, whatever its name.
_MADE_BY = {
    "Docker": r"docker\d+$|docker_gwbridge$|br-[0-9a-f]{12}$",
    "a container engine": r"veth|podman|lxc|lxd|incus",
    "libvirt": r"virbr|vnet",
    "Kubernetes": r"cni|flannel|cali|cilium|kube|nodelocaldns",
    VPN: r"tailscale|wg|zt|tun|tap|nordlynx",
}

# Kinds of interfaces, as `ip -d` names them
_TUNNELS = ("wireguard", "tun")
_STACKED = ("bond", "team", "vlan", "bridge")

# Open vSwitch: the kernel shows its members below this interface, and nothing below its bridges
_OVS = "ovs-system"


@dataclass(frozen=True)
class Candidate:
    """An interface with the properties that the choice depends on."""

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
        return "virtual, while there are physical ones"
    return None


def _own_objection(facts: HostFacts, nic: NicFacts) -> str | None:
    """Return why the interface by itself cannot be used; None if it can."""
    if nic.kind == "loopback":
        return "the loopback"
    if maker := maker_of(facts, nic):
        return f"made by {maker}"
    if nic.state not in ("up", "unknown"):
        return "down"

    if not _ipv4(nic):
        above = (upper for upper in map(facts.nic, nic.upper) if upper)
        if holder := next((upper for upper in above if _ipv4(upper)), None):
            return f"part of {holder.name}"
        if _OVS in nic.upper:
            return "part of an Open vSwitch bridge"
        if ipv6_addresses(nic):
            return "has IPv6 only"
        return "has a link-local address only" if nic.addresses else "has no address"

    return WIRELESS if nic.kind == "wlan" else None


def maker_of(facts: HostFacts, nic: NicFacts) -> str | None:
    """Return the kind of program that created the interface; None if the host did."""
    if _over_physical(facts, nic):
        return None
    named = (maker for maker, names in _MADE_BY.items() if re.match(names, nic.name))
    return next(named, VPN if nic.kind in _TUNNELS else None)


def _over_physical(facts: HostFacts, nic: NicFacts) -> bool:
    """Whether the NIC is hardware, or a bond, team, VLAN or bridge on top of it."""
    if nic.kind in ("physical", "wlan"):
        return True
    below = _lowers(facts, nic)
    if nic.kind == "virtual" and any(re.match(names, nic.name) for names in _MADE_BY.values()):
        return False
    if nic.kind == "virtual":
        # A team, which the kernel does not name. A macvlan's parent keeps its own address.
        below = [lower for lower in below if lower.kind == "physical" and not _ipv4(lower)]
    elif nic.kind not in (*_STACKED, "openvswitch"):
        return False
    return any(_over_physical(facts, lower) for lower in below)


def _lowers(facts: HostFacts, nic: NicFacts) -> list[NicFacts]:
    """Return the interfaces right below; for a bridge of Open vSwitch, all members of those."""
    names = nic.lower
    if not names and nic.kind in ("virtual", "openvswitch") and _ipv4(nic):
        switch = facts.nic(_OVS)
        names = switch.lower if switch else ()
    return [lower for lower in map(facts.nic, names) if lower is not None]


def _ipv4(nic: NicFacts) -> tuple[IPv4Interface, ...]:
    """Routable addresses: global ones, and no link-local ones, whatever their scope."""
    return tuple(
        address
        for address in _ipv4_of_scope(nic, "global")
        if not address.is_link_local  # such as 169.254.0.0/16
    )


def link_local(nic: NicFacts) -> tuple[IPv4Interface, ...]:
    """The interface's link-local IPv4 addresses, which reach only the same cable or switch."""
    found = (*_ipv4_of_scope(nic, "global"), *_ipv4_of_scope(nic, "link"))
    return tuple(address for address in found if address.is_link_local)


def _ipv4_of_scope(nic: NicFacts, scope: str) -> tuple[IPv4Interface, ...]:
    return tuple(
        IPv4Interface(f"{address.ip}/{address.prefix}")
        for address in nic.addresses
        if address.scope == scope and ":" not in address.ip
    )


def direct_links(facts: HostFacts) -> tuple[Candidate, ...]:
    """Return the hardware interfaces that are up and have link-local addresses only, with a known
    speed: the ends of cables between hosts, and a BMC's port to its own host."""
    linked = (nic for nic in facts.nics if nic.kind == "physical" and nic.state == "up")
    return tuple(
        as_candidate(facts, nic)
        for nic in linked
        if nic.speed and link_local(nic) and not _ipv4(nic)
    )


# The PCI domain in a name that systemd gave: enP2p1s0f0np0 is in domain 2, enp1s0f0np0 in 0
_DOMAIN = re.compile(r"^(en|ib)P[0-9a-f]+(p\d+s\d+f\d+np\d+)$")


def one_port(first: str, second: str) -> bool:
    """Whether two NICs are halves of one port, by their names. An adapter on two PCIe links, as in
    a DGX Spark, shows each port once for each link, with the same address in two domains."""
    plain = [_DOMAIN.sub(r"\1\2", name) for name in (first, second)]
    return first != second and plain[0] == plain[1]


def loopback_address(facts: HostFacts) -> str | None:
    """Return an address on the loopback that others can reach, as hosts with BGP have one; None
    without one."""
    loopbacks = (nic for nic in facts.nics if nic.kind == "loopback")
    found = (str(address.ip) for nic in loopbacks for address in _ipv4_of_scope(nic, "global"))
    return next((ip for ip in found if not ip.startswith("127.")), None)


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
        addresses=_ipv4(nic) or link_local(nic),
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
    """Mbit/s: a bridge's fastest member, IPoIB's RDMA port, else as reported. None for virtual
    interfaces, whose drivers report a made-up speed (veth: 10 Gbit/s)."""
    if nic.kind not in ("physical", "wlan") and not _over_physical(facts, nic):
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
