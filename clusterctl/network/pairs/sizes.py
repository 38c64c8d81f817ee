"""Which packets and ports are tried between two hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.facts.network_requirements import EVERY_NODE
from clusterctl.inventory.model import RayPorts
from clusterctl.network.pairs.model import End

SMALL = 84  # Bytes of an IP packet that every path carries: what `ping` sends by itself

ETHERNET = 1500

# Sizes to find a lower limit with: IPv6's least, tunnels (WireGuard 1420, VXLAN 1450), PPPoE,
# InfiniBand's datagram modes, jumbo frames under a tunnel.
STEPS = (576, 1280, 1400, 1420, 1450, 1460, 1480, 1492, 1500, 2044, 4092, 4200, 8000, 8900, 8950)

# Peers that are tried on all ports; the others on an ephemeral one, and the head's. Firewalls are
# set for a host, seldom for one peer of it.
NEIGHBOURS = 8


def packet_sizes(sender: End, receiver: End) -> tuple[int, ...]:
    """Sizes of whole IP packets: a small one, what both ends take, and what the sender takes."""
    both = min(sender.mtu, receiver.mtu)
    if not both:
        return (SMALL,)
    found = {SMALL, both, sender.mtu, *((ETHERNET,) if both > ETHERNET else ())}
    # 65536 is the loopback's, and more than a packet can have.
    return tuple(sorted(min(size, 65535) for size in found))


def smaller_sizes(lost: int) -> tuple[int, ...]:
    """Sizes to try after `lost` did not pass."""
    return tuple(size for size in STEPS if size < lost)


def ray_port_names(ports: RayPorts, *, head: bool) -> dict[int, str]:
    """Ports that other hosts connect to, with their keys in the inventory."""
    names = ("gcs", *EVERY_NODE) if head else EVERY_NODE
    found = {getattr(ports, name): f"ray_ports.{name}" for name in names}
    return {**found, ports.min_worker: "ray_ports.min_worker"}


def near(index: int, peer: int, hosts: int) -> bool:
    """Whether `peer` is one of the NEIGHBOURS that follow `index`, with the hosts in a ring."""
    return (peer - index) % hosts <= NEIGHBOURS


def rounds(hosts: int, most: int) -> Sequence[int]:
    """Shifts of a tournament: in round s every host sends to the s-th after it and receives from
    the s-th before it, so that rounds are disjoint and hosts - 1 of them are all pairs. With
    more than `most`, evenly spread."""
    shifts = range(1, hosts)
    count = min(len(shifts), most)
    return tuple(shifts[number * len(shifts) // count] for number in range(count))
