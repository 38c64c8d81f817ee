"""What a user should know of a host's RDMA devices. Pure; untried on such hardware."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from clusterctl.facts.model import HostFacts, RdmaDevice, RdmaPort
from clusterctl.inventory.model import Host, Inventory

VERBS_NODES = "/dev/infiniband/uverbs"


def rdma_notes(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
    """A sentence each, about the active devices; none where the inventory switches RDMA off."""
    devices = usable_devices(inventory, host, facts)
    if not devices:
        return
    if not has_verbs(facts):
        yield f"no {VERBS_NODES}*: containers cannot use its RDMA devices: sudo modprobe ib_uverbs"
    for device in devices:
        yield from _port_notes(device)
    if facts.memlock_hard is not None and facts.memlock_hard < sys.maxsize:
        yield (
            f"at most {facts.memlock_hard // 1024} KiB of locked memory for programs outside "
            "containers; the node container has no limit"
        )


def usable_devices(inventory: Inventory, host: Host, facts: HostFacts) -> list[RdmaDevice]:
    """The active ones; none where the inventory switches RDMA off."""
    wanted = inventory.network.rdma and host.nics.rdma != ()
    return [device for device in facts.rdma if device.active] if wanted else []


def has_verbs(facts: HostFacts) -> bool:
    """Whether there is a device node for programs: the kernel's devices alone are not enough."""
    return any(path.startswith(VERBS_NODES) for path in facts.rdma_nodes)


def _port_notes(device: RdmaDevice) -> Iterator[str]:
    for port in device.ports:
        if port.active and not port.gids:
            yield (
                f"all GIDs of {device.name}:{port.number} are zero, and no rank could use it: "
                f"give {_nic(device)} an address, or start the subnet manager"
            )
        elif port.active and port.link_layer == "Ethernet" and not _has_v2(port):
            yield (
                f"{device.name}:{port.number} has no RoCE v2 GID, which NCCL looks for: give "
                f"{_nic(device)} an IPv4 address"
            )


def _nic(device: RdmaDevice) -> str:
    return device.nics[0] if device.nics else "its interface"


def _has_v2(port: RdmaPort) -> bool:
    """True also where the kernel does not tell types."""
    return any(gid.type in ("RoCE v2", "") for gid in port.gids)
