"""Which RDMA devices NCCL is given: on every host or on none. Pure; untried on such hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.facts.model import HostFacts, RdmaDevice, RdmaPort
from clusterctl.facts.rdma_requirements import has_verbs
from clusterctl.inventory.model import Inventory


@dataclass(frozen=True)
class RdmaChoice:
    """What every host uses, as NCCL_IB_HCA names it: `mlx5_0:1` is port 1 of mlx5_0. Empty
    everywhere when RDMA is off: NCCL cannot join InfiniBand to sockets."""

    ports: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class _Port:
    name: str
    link_layer: str
    rate: float


def choose_rdma(inventory: Inventory, facts: Mapping[str, HostFacts]) -> RdmaChoice:
    """Named devices where the inventory names some; else the fastest active ports of the one
    link layer, InfiniBand or Ethernet, that every host has: the two do not talk to each other."""
    if not inventory.network.rdma:
        return _off(facts, "network.rdma is false in the inventory")
    usable = {name: _offered(inventory, name, of_host) for name, of_host in facts.items()}
    if lacking := [name for name, ports in usable.items() if not ports]:
        return _off(facts, _why_off(inventory, facts, lacking))
    layers = [{port.link_layer for port in ports} for ports in usable.values()]
    common = set.intersection(*layers) if layers else set()
    if not common:
        return _off(facts, "some hosts have InfiniBand, others Ethernet")
    layer = max(sorted(common), key=lambda each: _slowest(usable, each))
    chosen = {name: _chosen(inventory, name, ports, layer) for name, ports in usable.items()}
    return RdmaChoice(chosen, {name: _reason(inventory, name, usable, chosen) for name in facts})


def usable_ports(device: RdmaDevice) -> tuple[RdmaPort, ...]:
    """Active ports that have an address: with nothing but zeros in its table of GIDs a port
    kills its rank after a minute."""
    return tuple(port for port in device.ports if port.active and port.gids)


def _offered(inventory: Inventory, name: str, facts: HostFacts) -> tuple[_Port, ...]:
    named = inventory.host(name).nics.rdma
    if not has_verbs(facts):
        return ()
    devices = [d for d in facts.rdma if d.active and (named is None or d.name in named)]
    return tuple(port for device in devices for port in _ports(device))


def _ports(device: RdmaDevice) -> list[_Port]:
    if not device.ports:  # of a probe that did not look at ports
        return [_Port(device.name, device.link_layer, 0.0)]
    return [
        _Port(f"{device.name}:{port.number}", port.link_layer, port.rate or 0.0)
        for port in usable_ports(device)
    ]


def _slowest(usable: Mapping[str, tuple[_Port, ...]], layer: str) -> float:
    return min(
        max(port.rate for port in ports if port.link_layer == layer) for ports in usable.values()
    )


def _chosen(
    inventory: Inventory, name: str, ports: tuple[_Port, ...], layer: str
) -> tuple[str, ...]:
    """Slower ports beside faster ones are for storage or management on most hosts."""
    of_layer = [port for port in ports if port.link_layer == layer]
    if inventory.host(name).nics.rdma is not None:
        return tuple(port.name for port in of_layer)
    fastest = max(port.rate for port in of_layer)
    return tuple(port.name for port in of_layer if port.rate == fastest)


def _reason(
    inventory: Inventory,
    name: str,
    usable: Mapping[str, tuple[_Port, ...]],
    chosen: Mapping[str, tuple[str, ...]],
) -> str:
    text = f"RDMA over {', '.join(chosen[name])}"
    if inventory.host(name).nics.rdma is not None:
        return f"{text}: named in the inventory"
    left = [port.name for port in usable[name] if port.name not in chosen[name]]
    return f"{text}: active" + (f", and faster than {', '.join(left)}" if left else "")


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
