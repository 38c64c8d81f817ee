"""Which interfaces and addresses carry what between hosts."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.network.pairs.model import default_route_notes, lanes
from clusterctl.ray_cluster.topology import Node, Topology
from tests.fakes.host_facts import host_facts, nic


def node(name: str, ip: str, *, control: str, nccl: str, gloo: str) -> Node:
    return Node(name, "worker", ip, control, tuple(nccl.split(",")), gloo, (), 1)


def facts(*nics: NicFacts, default: str | None = None) -> HostFacts:
    return host_facts(*nics, default_nic=default)


TWO_NICS = {
    "a": facts(nic("eth0", "10.0.0.1"), nic("eth1", "10.1.0.1/16"), default="eth0"),
    "b": facts(nic("ens2", "10.0.0.2"), nic("ens3", "10.1.0.2/16"), default="ens3"),
}
A = node("a", "10.0.0.1", control="eth0", nccl="eth1", gloo="eth1")
B = node("b", "10.0.0.2", control="ens2", nccl="ens3", gloo="ens3")


def test_purposes_that_share_interfaces_share_a_lane() -> None:
    control, fabric = lanes(Topology((A, B)), TWO_NICS)
    assert (control.purposes, fabric.purposes) == (("control",), ("nccl", "gloo"))
    assert str(fabric.ends["b"]) == "ens3 (10.1.0.2)"
    assert fabric.ends["b"].prefix == 16
    assert fabric.ends["b"].speed == 10_000


def test_one_interface_for_all_is_one_lane() -> None:
    alone = [replace(n, nccl_nics=(n.control_nic,), gloo_nic=n.control_nic) for n in (A, B)]
    (only,) = lanes(Topology(tuple(alone)), TWO_NICS)
    assert only.purposes == ("control", "nccl", "gloo")


def test_rails_that_every_host_has_are_lanes() -> None:
    both = replace(A, nccl_nics=("eth1", "eth0")), replace(B, nccl_nics=("ens3", "ens2"))
    found = lanes(Topology(both), TWO_NICS)
    assert [lane.purposes for lane in found] == [("control", "nccl"), ("nccl", "gloo")]
    uneven = lanes(Topology((both[0], B)), TWO_NICS)
    assert [lane.purposes for lane in uneven] == [("control",), ("nccl", "gloo")]


def test_the_node_ip_wins_over_other_addresses_of_its_interface_and_gives_the_family() -> None:
    many = facts(nic("eth0", "10.0.0.9", "fd00::1", "10.0.0.1", "fd00::2"))
    four = replace(A, nccl_nics=("eth0",), gloo_nic="eth0")
    six = replace(four, node_ip="fd00::2")
    assert lanes(Topology((four,)), {"a": many})[0].ends["a"].ip == "10.0.0.1"
    assert lanes(Topology((six,)), {"a": many})[0].ends["a"].ip == "fd00::2"


def test_a_virtual_interface_says_nothing_of_the_link() -> None:
    veth = facts(nic("eth0", "10.0.0.1", kind="virtual"), nic("eth1", "10.1.0.1"))
    control, _ = lanes(Topology((A,)), {"a": veth})
    assert control.ends["a"].speed is None


def test_hosts_without_facts_or_address_are_left_out() -> None:
    bare = {"a": facts(nic("eth0", "10.0.0.1"), nic("eth1"))}
    control, fabric = lanes(Topology((A, B)), bare)
    assert list(control.ends) == ["a"]
    assert list(fabric.ends) == []


def test_a_default_route_beside_the_fabric_is_noted_for_those_that_have_it() -> None:
    (text,) = default_route_notes(Topology((A, B)), TWO_NICS)
    assert "carries NCCL on a (eth0, not eth1): harmless here" in text
    assert list(default_route_notes(Topology((B,)), TWO_NICS)) == []
