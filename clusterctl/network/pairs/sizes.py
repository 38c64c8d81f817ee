"""Choose the packet sizes and ports that are tried between two hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.facts.network_requirements import EVERY_NODE
from clusterctl.inventory.model import RayPorts
from clusterctl.network.pairs.model import End

SMALL = 84  # Bytes of an IP packet that every path carries: the default of `ping`

ETHERNET = 1500

# Sizes to try for a lower limit: IPv6's minimum, tunnels (WireGuard 1420, VXLAN 1450), PPPoE,
# InfiniBand's datagram modes, jumbo frames inside a tunnel.
STEPS = (576, 1280, 1400, 1420, 1450, 1460, 1480, 1492, 1500, 2044, 4092, 4200, 8000, 8900, 8950)

# Number of peers that are tried on all ports; others are tried on an ephemeral port and the head's
# GCS port. Firewall rules are set for a host, seldom for one of its peers.
NEIGHBOURS = 8


def packet_sizes(sender: End, receiver: End) -> tuple[int, ...]:
    """Sizes of IP packets: SMALL, the smaller MTU of both ends, the sender's, and ETHERNET."""
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
    """Ports of Ray that other hosts connect to, with their keys in the inventory."""
    names = ("gcs", *EVERY_NODE) if head else EVERY_NODE
    found = {getattr(ports, name): f"ray_ports.{name}" for name in names}
    return {**found, ports.min_worker: "ray_ports.min_worker"}


def near(index: int, peer: int, hosts: int) -> bool:
    """Whether `peer` is one of the NEIGHBOURS that follow `index` in the ring of hosts."""
    return (peer - index) % hosts <= NEIGHBOURS


def rounds(hosts: int, most: int) -> Sequence[int]:
    """Return the shifts of a round-robin tournament: in round s every host sends to the s-th host
    after it and receives from the s-th before it, so that all pairs take `hosts` - 1 rounds. If
    there would be more than `most`, return that many, evenly spread."""
    shifts = range(1, hosts)
    count = min(len(shifts), most)
    return tuple(shifts[number * len(shifts) // count] for number in range(count))
