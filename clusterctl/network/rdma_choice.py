"""Choose the RDMA devices for NCCL: on every host or on none. Pure; not tested on such hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.facts.model import HostFacts, RdmaDevice, RdmaPort
from clusterctl.facts.network_requirements import has_verbs
from clusterctl.inventory.model import Inventory


@dataclass(frozen=True)
class RdmaChoice:
    """RDMA ports of each host, as NCCL_IB_HCA names them: `mlx5_0:1` is port 1 of mlx5_0. Empty for
    all hosts if RDMA is off: NCCL cannot connect InfiniBand to sockets."""

    ports: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]


def choose_rdma(inventory: Inventory, facts: Mapping[str, HostFacts]) -> RdmaChoice:
    """Choose the devices that the inventory names, else the fastest active ports of the link layer
    that all hosts have: InfiniBand or Ethernet, which cannot talk to each other."""
    if not inventory.network.rdma:
        return _off(facts, "network.rdma is false in the inventory")
    usable = {name: _usable(inventory, name, of_host) for name, of_host in facts.items()}
    if lacking := [name for name, ports in usable.items() if not ports]:
        return _off(facts, _why_off(inventory, facts, lacking))
    layers = [{layer for _, layer, _ in ports} for ports in usable.values()]
    common = set.intersection(*layers) if layers else set()
    if not common:
        return _off(facts, "some hosts have InfiniBand, others Ethernet")

    def slowest(layer: str) -> float:
        return min(max(rate for _, of, rate in ports if of == layer) for ports in usable.values())

    layer = max(sorted(common), key=slowest)
    chosen: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    for name, ports in usable.items():
        of_layer = {port: rate for port, of, rate in ports if of == layer}
        named = inventory.host(name).nics.rdma is not None
        # Slower ports beside faster ones usually serve storage or management.
        fastest = max(of_layer.values())
        chosen[name] = tuple(p for p, rate in of_layer.items() if named or rate == fastest)
        left = [port for port, _, _ in ports if port not in chosen[name]]
        why = "active" + (f", and faster than {', '.join(left)}" if left else "")
        reasons[name] = (
            f"RDMA over {', '.join(chosen[name])}: {'named in the inventory' if named else why}"
        )
    return RdmaChoice(chosen, reasons)


def usable_ports(device: RdmaDevice) -> tuple[RdmaPort, ...]:
    """Active ports that have an address: NCCL ranks on a port whose GIDs are all zero die after a
    minute."""
    return tuple(port for port in device.ports if port.active and port.gids)


def _usable(inventory: Inventory, name: str, facts: HostFacts) -> list[tuple[str, str, float]]:
    """Return name, link layer and rate of the ports that may be chosen."""
    named = inventory.host(name).nics.rdma
    found: list[tuple[str, str, float]] = []
    for device in facts.rdma if has_verbs(facts) else ():
        if device.active and (named is None or device.name in named):
            if not device.ports:  # an older probe, which did not look at ports
                found.append((device.name, device.link_layer, 0.0))
            found += (
                (f"{device.name}:{port.number}", port.link_layer, port.rate or 0.0)
                for port in usable_ports(device)
            )
    return found


def _off(facts: Mapping[str, HostFacts], reason: str) -> RdmaChoice:
    return RdmaChoice(dict.fromkeys(facts, ()), dict.fromkeys(facts, f"RDMA off: {reason}"))


def _why_off(inventory: Inventory, facts: Mapping[str, HostFacts], lacking: list[str]) -> str:
    switched = [name for name in lacking if inventory.host(name).nics.rdma == ()]
    if switched:
        return f"nics.rdma is an empty list for {', '.join(switched)}"
    unseen = [name for name in lacking if facts[name].rdma and not has_verbs(facts[name])]
    if unseen:
        return f"no /dev/infiniband/uverbs* on {', '.join(unseen)}"
    zeros = [
        f"{device.name} of {name}"
        for name in lacking
        for device in facts[name].rdma
        if device.active and device.ports and not usable_ports(device)
    ]
    if zeros:
        return f"all GIDs of {', '.join(zeros)} are zero"
    if len(lacking) < len(facts):
        return f"no active device on {', '.join(lacking)}"
    return "no active device"
