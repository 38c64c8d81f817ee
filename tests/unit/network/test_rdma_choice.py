"""RDMA on every host or on none; the exact ports, and why."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.facts.model import Gid, HostFacts, RdmaDevice, RdmaPort
from clusterctl.inventory.model import Host, Inventory, Nics
from clusterctl.network.fabric_choice import RdmaChoice, choose_rdma
from tests.fakes.host_facts import host_facts

GID = Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "ens5")


def device(
    name: str, layer: str = "InfiniBand", rate: float = 400_000.0, **port: Any
) -> RdmaDevice:
    first = RdmaPort(
        1, **{"active": True, "link_layer": layer, "rate": rate, "gids": (GID,), **port}
    )
    return RdmaDevice(name, (), layer, first.active, f"{rate / 1000:g} Gb/sec", (first,))


def choose(
    a: tuple[RdmaDevice, ...], b: tuple[RdmaDevice, ...], nics: Nics | None = None, **settings: Any
) -> RdmaChoice:
    inventory = Inventory(
        cluster="demo",
        image="i",
        hosts=(
            Host(name="a", address="a", role="head", nics=nics or Nics()),
            Host(name="b", address="b"),
        ),
        **settings,
    )
    facts: dict[str, HostFacts] = {"a": host_facts(rdma=a), "b": host_facts(rdma=b)}
    return choose_rdma(inventory, facts)


def test_the_fastest_active_ports_of_every_host() -> None:
    compute, storage = device("mlx5_0"), device("mlx5_9", rate=100_000.0)
    found = choose((compute, storage), (device("mlx5_4"), device("mlx5_5")))
    assert found.ports == {"a": ("mlx5_0:1",), "b": ("mlx5_4:1", "mlx5_5:1")}
    assert found.reasons["a"] == "RDMA over mlx5_0:1: active, and faster than mlx5_9:1"
    assert found.reasons["b"] == "RDMA over mlx5_4:1, mlx5_5:1: active"


def test_the_link_layer_that_both_have() -> None:
    roce = device("rocep1", "Ethernet", 100_000.0)
    found = choose((device("mlx5_0"), roce), (roce,))
    assert found.ports == {"a": ("rocep1:1",), "b": ("rocep1:1",)}


@pytest.mark.parametrize(
    ("a", "b", "settings", "reason"),
    [
        ((), (), {}, "no active device"),
        ((device("m0"),), (), {}, "no active device on b"),
        ((device("m0"),), (device("m0", active=False),), {}, "no active device on b"),
        ((device("m0"),), (device("m0", gids=()),), {}, "all GIDs of m0 of b are zero"),
        (
            (device("m0"),),
            (device("m0", "Ethernet"),),
            {},
            "some hosts have InfiniBand and others Ethernet",
        ),
        (
            (device("m0"),),
            (device("m0"),),
            {"network": {"rdma": False}},
            "network.rdma is false in the inventory",
        ),
        (
            (device("m0"),),
            (device("m0"),),
            {"nics": Nics(rdma=())},
            "nics.rdma is an empty list for a",
        ),
    ],
)
def test_off_everywhere_with_the_reason(
    a: tuple[RdmaDevice, ...], b: tuple[RdmaDevice, ...], settings: dict[str, Any], reason: str
) -> None:
    found = choose(a, b, **settings)
    assert found.ports == {"a": (), "b": ()}
    assert set(found.reasons.values()) == {f"RDMA off: {reason}"}


def test_named_devices_are_taken_as_they_are() -> None:
    found = choose(
        (device("m0"), device("m1", rate=100_000.0)), (device("m0"),), Nics(rdma=("m1", "m0"))
    )
    assert found.ports["a"] == ("m0:1", "m1:1")
    assert found.reasons["a"] == "RDMA over m0:1, m1:1: named in the inventory"


def test_devices_that_no_program_can_open_are_not_used() -> None:
    inventory = Inventory(
        cluster="demo", image="i", hosts=(Host(name="a", address="a", role="head"),)
    )
    facts = host_facts(rdma=(device("m0"),), rdma_nodes=("/dev/infiniband/rdma_cm",))
    found = choose_rdma(inventory, {"a": facts})
    assert found.reasons["a"] == "RDMA off: no /dev/infiniband/uverbs* on a"
