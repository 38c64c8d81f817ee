"""Which subnet carries the tensors: rules in order, ties asked, reasons told."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.errors import Problems, RequirementsNotMet
from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.network.fabric_choice import Fabric, choose_fabric
from tests.fakes.host_facts import host_facts, nic, rdma


def hosts(*each: HostFacts) -> dict[str, HostFacts]:
    return {f"gpu{number}": facts for number, facts in enumerate(each, 1)}


def slow(ip: str, name: str = "eno1", **changes: Any) -> NicFacts:
    return nic(name, ip, **{"speed": 1000, **changes})


def fast(ip: str, name: str = "ens5", **changes: Any) -> NicFacts:
    return nic(name, ip, **{"speed": 100_000, **changes})


def chosen(fabric: Fabric) -> dict[str, tuple[str, str]]:
    return {name: (place.nic.nic, place.ip) for name, place in fabric.places.items()}


def test_the_only_shared_subnet_under_unlike_names() -> None:
    fabric = choose_fabric(
        hosts(host_facts(slow("10.0.0.1", "eth0")), host_facts(slow("10.0.0.2", "enp3s0f1")))
    )
    assert chosen(fabric) == {"gpu1": ("eth0", "10.0.0.1"), "gpu2": ("enp3s0f1", "10.0.0.2")}
    assert fabric.reason == (
        "the only subnet that all hosts share, 10.0.0.0/24 (1 Gbit/s, MTU 1500)"
    )


def test_the_faster_subnet_wins() -> None:
    fabric = choose_fabric(
        hosts(
            host_facts(slow("10.0.0.1"), fast("10.1.0.1")),
            host_facts(slow("10.0.0.2"), fast("10.1.0.2", "ens7")),
        )
    )
    assert chosen(fabric) == {"gpu1": ("ens5", "10.1.0.1"), "gpu2": ("ens7", "10.1.0.2")}
    assert fabric.reason == (
        "10.1.0.0/24 (100 Gbit/s, MTU 1500), faster than 10.0.0.0/24 (1 Gbit/s, MTU 1500)"
    )


def test_a_subnet_is_as_fast_as_its_slowest_link() -> None:
    fabric = choose_fabric(
        hosts(
            host_facts(nic("a0", "10.0.0.1", speed=10_000), fast("10.1.0.1")),
            host_facts(nic("a0", "10.0.0.2", speed=10_000), slow("10.1.0.2")),
        )
    )
    assert {place.nic.nic for place in fabric.places.values()} == {"a0"}
    assert "10 Gbit/s" in fabric.reason
    assert "faster than 10.1.0.0/24 (1 Gbit/s" in fabric.reason


def test_an_unknown_speed_is_the_lowest() -> None:
    fabric = choose_fabric(
        hosts(
            host_facts(slow("10.0.0.1", speed=100), nic("x", "10.1.0.1", speed=None)),
            host_facts(slow("10.0.0.2", speed=100), nic("x", "10.1.0.2", speed=None)),
        )
    )
    assert {place.nic.nic for place in fabric.places.values()} == {"eno1"}


def test_a_subnet_that_one_host_lacks_does_not_count() -> None:
    fabric = choose_fabric(
        hosts(host_facts(slow("10.0.0.1"), fast("10.1.0.1")), host_facts(slow("10.0.0.2")))
    )
    assert fabric.places["gpu1"].ip == "10.0.0.1"


def pair(**better: Any) -> dict[str, HostFacts]:
    """Two hosts with two equally fast subnets; `better` is what 10.1.0.0/24 has more."""
    facts = dict(better.pop("facts", {}))
    return hosts(
        *(
            host_facts(
                fast(f"10.0.0.{n}", "a0", numa_node=1), fast(f"10.1.0.{n}", "b0", **better), **facts
            )
            for n in (1, 2)
        )
    )


@pytest.mark.parametrize(
    ("better", "words"),
    [
        ({"numa_node": 0, "facts": {"gpu_numa_nodes": (0,)}}, "and nearer to the GPUs"),
        ({"facts": {"default_nic": "a0"}}, "which has the default route"),
        ({"mtu": 9000}, "and has the larger MTU"),
    ],
)
def test_what_decides_among_equally_fast(better: dict[str, Any], words: str) -> None:
    fabric = choose_fabric(pair(**better))
    assert {place.nic.nic for place in fabric.places.values()} == {"b0"}
    assert "as fast as 10.0.0.0/24" in fabric.reason
    assert words in fabric.reason


def test_rdma_decides_before_the_rest() -> None:
    device = rdma("mlx5_0", nics=("b0",))
    better = {"facts": {"rdma": (device,), "gpu_numa_nodes": (1,), "default_nic": "b0"}}
    fabric = choose_fabric(pair(**better))
    assert {place.nic.nic for place in fabric.places.values()} == {"b0"}
    assert "and has RDMA" in fabric.reason


def test_a_tie_is_a_question_with_the_line_that_answers_it() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        choose_fabric(pair())
    error = caught.value
    assert error.summary == "2 subnets that all hosts share are equally good for the tensors"
    assert error.hint == (
        "set one in the inventory: network: {subnet: 10.0.0.0/24} or network: {subnet: 10.1.0.0/24}"
    )
    assert error.detail == (
        "10.0.0.0/24 (100 Gbit/s, MTU 1500): gpu1 a0, gpu2 a0\n"
        "10.1.0.0/24 (100 Gbit/s, MTU 1500): gpu1 b0, gpu2 b0"
    )


def test_two_equal_interfaces_in_one_subnet_are_a_question_for_each_host() -> None:
    both = hosts(
        *(host_facts(fast(f"10.0.0.{n}", "a0"), fast(f"10.0.0.{n + 10}", "b0")) for n in (1, 2))
    )
    with pytest.raises(Problems) as caught:
        choose_fabric(both)
    first, second = caught.value.errors
    assert str(first) == "gpu1: has a0 and b0 in 10.0.0.0/24, equally good"
    assert "nics: {nccl: b0, gloo: b0}" in str(second.hint)


def test_of_two_unequal_interfaces_in_one_subnet_the_better_is_taken() -> None:
    fabric = choose_fabric(
        hosts(host_facts(slow("10.0.0.1"), fast("10.0.0.11")), host_facts(fast("10.0.0.2")))
    )
    assert fabric.places["gpu1"].nic.nic == "ens5"


def test_a_point_to_point_link_is_a_subnet_and_a_host_address_is_none() -> None:
    fabric = choose_fabric(
        hosts(
            host_facts(slow("10.0.0.1"), fast("192.168.7.0/31", "p0")),
            host_facts(slow("10.0.0.2"), fast("192.168.7.1/31", "p1")),
        )
    )
    assert chosen(fabric) == {"gpu1": ("p0", "192.168.7.0"), "gpu2": ("p1", "192.168.7.1")}


def test_routed_hosts_with_one_interface_each_have_no_choice() -> None:
    """As clouds set them up: every host in a network of its own."""
    fabric = choose_fabric(
        hosts(host_facts(fast("10.128.0.2/32")), host_facts(fast("10.128.0.3/32")))
    )
    assert chosen(fabric)["gpu2"] == ("ens5", "10.128.0.3")
    assert "a router joins" in fabric.reason


def test_no_shared_subnet_shows_every_interface_of_every_host() -> None:
    docker = nic("docker0", "172.17.0.1", kind="bridge")
    with pytest.raises(RequirementsNotMet) as caught:
        choose_fabric(
            hosts(
                host_facts(slow("10.0.0.1"), fast("10.1.0.1"), docker),
                host_facts(slow("10.2.0.2"), docker),
            )
        )
    assert caught.value.summary == "no IPv4 subnet is shared by all hosts"
    assert caught.value.detail == (
        "gpu1  eno1     10.0.0.1/24  1 Gbit/s, MTU 1500\n"
        "gpu1  ens5     10.1.0.1/24  100 Gbit/s, MTU 1500\n"
        "gpu1  docker0               not used: made by Docker\n"
        "gpu2  eno1     10.2.0.2/24  1 Gbit/s, MTU 1500\n"
        "gpu2  docker0               not used: made by Docker"
    )


def test_hosts_with_ipv6_only_are_named() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        choose_fabric(hosts(host_facts(slow("10.0.0.1")), host_facts(nic("eth0", "fd00::2/64"))))
    assert caught.value.summary == (
        "no usable interface with an IPv4 address on gpu2 (IPv6 only: gpu2)"
    )
