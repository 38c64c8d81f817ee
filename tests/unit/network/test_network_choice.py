"""Interfaces by purpose: what the inventory says, and one rule for what it leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory, Nics
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.topology import Node
from tests.fakes.host_facts import host_facts, nic


def facts(number: int, **changes: Any) -> HostFacts:
    return host_facts(
        nic("eth0", f"10.0.0.{number}", speed=1000),
        nic("ens5", f"10.1.0.{number}", speed=100_000),
        nic("tailscale0", f"100.64.0.{number}", kind="virtual"),
        **changes,
    )


TWO = {"a": facts(1), "b": facts(2)}


def nodes(
    a: dict[str, Any], b: dict[str, Any], found: dict[str, HostFacts] = TWO, **settings: Any
) -> tuple[Node, ...]:
    pair = (Host(**{"name": "a", "role": "head", **a}), Host(**{"name": "b", **b}))
    return resolve(Inventory(cluster="demo", image="i", hosts=pair, **settings), found).nodes


def places(found: tuple[Node, ...]) -> list[tuple[str, str, str]]:
    return [(node.node_ip, node.nccl_nics[0], node.gloo_nic) for node in found]


def test_ray_goes_where_ssh_goes_and_tensors_take_the_fastest() -> None:
    found = nodes({"address": "10.0.0.1"}, {"address": "10.0.0.2"})
    assert places(found) == [("10.0.0.1", "ens5", "ens5"), ("10.0.0.2", "ens5", "ens5")]
    assert found[1].explain == (
        "node IP 10.0.0.2 on eth0: the address that SSH connects to",
        "NCCL on ens5: 10.1.0.0/24 (100 Gbit/s, MTU 1500), faster than 10.0.0.0/24 "
        "(1 Gbit/s, MTU 1500)",
        "Gloo on ens5: the interface of NCCL",
        "RDMA off: no active device",
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [("a.example", "b.example"), ("10.0.0.1", "b.example"), ("10.0.0.1", "10.1.0.2"),
     ("100.64.0.1", "100.64.0.2")],
)  # fmt: skip
def test_without_one_subnet_of_ssh_ray_takes_the_fabric_too(a: str, b: str) -> None:
    """Names, a mixture, or a VPN, which would carry Ray at a fraction of the speed."""
    found = nodes({"address": a}, {"address": b})
    assert places(found) == [("10.1.0.1", "ens5", "ens5"), ("10.1.0.2", "ens5", "ens5")]
    assert "in the subnet of NCCL" in found[0].explain[0]


def test_hosts_known_by_name_tell_where_ssh_came_in() -> None:
    told = {"a": facts(1, ssh_ip="10.0.0.1"), "b": facts(2, ssh_ip="10.0.0.2")}
    found = nodes({"address": "a.example"}, {"address": "b.example"}, told)
    assert places(found) == [("10.0.0.1", "ens5", "ens5"), ("10.0.0.2", "ens5", "ens5")]
    assert "the address that SSH connects to" in found[0].explain[0]


def test_the_subnet_serves_all_that_is_open() -> None:
    found = nodes({"address": "a"}, {"address": "b"}, network={"subnet": "10.0.0.0/24"})
    assert places(found) == [("10.0.0.1", "eth0", "eth0"), ("10.0.0.2", "eth0", "eth0")]


def test_the_others_follow_the_interface_that_one_host_names() -> None:
    found = nodes({"address": "10.0.0.1", "nics": Nics(nccl="eth0")}, {"address": "10.0.0.2"})
    assert places(found) == [("10.0.0.1", "eth0", "eth0"), ("10.0.0.2", "eth0", "eth0")]


def test_each_purpose_can_be_named_by_itself() -> None:
    found = nodes({"address": "10.0.0.1", "nics": Nics(gloo="eth0")}, {"address": "10.0.0.2"})
    assert places(found) == [("10.0.0.1", "ens5", "eth0"), ("10.0.0.2", "ens5", "ens5")]


def test_what_is_named_everywhere_leaves_nothing_to_ask() -> None:
    tied = {
        name: host_facts(nic("a0", f"10.0.0.{n}"), nic("b0", f"10.1.0.{n}"))
        for n, name in enumerate("ab", 1)
    }
    named = {"nics": Nics(control="a0", nccl="b0", gloo="b0")}
    found = nodes({"address": "a", **named}, {"address": "b", **named}, tied)
    assert places(found) == [("10.0.0.1", "b0", "b0"), ("10.0.0.2", "b0", "b0")]
    with pytest.raises(RequirementsNotMet, match="equally good"):
        nodes({"address": "a"}, {"address": "b"}, tied)


def alone(found: HostFacts, address: str = "a") -> Node:
    host = Host(name="a", address=address, role="head")
    return resolve(Inventory(cluster="demo", image="i", hosts=(host,)), {"a": found}).nodes[0]


def test_one_host_asks_nothing() -> None:
    tied = host_facts(nic("a0", "10.0.0.1"), nic("b0", "10.1.0.1"), default_nic="a0")
    assert alone(tied).node_ip == "10.0.0.1"
    assert alone(tied, "10.1.0.1").node_ip == "10.1.0.1"


def test_one_host_with_ipv6_only() -> None:
    node = alone(host_facts(nic("eth0", "fd00::1/64")), "fd00::1")
    assert (node.node_ip, node.nccl_nics) == ("fd00::1", ("eth0",))
