"""Which interfaces count, on hosts of many shapes, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.facts.candidates import candidates, rejected, speed_text
from clusterctl.facts.model import Address, NicFacts, RdmaPort
from tests.fakes.host_facts import host_facts, nic, rdma


def names(*nics: NicFacts) -> list[str]:
    return [candidate.nic for candidate in candidates(host_facts(*nics))]


def reasons(*nics: NicFacts) -> dict[str, str]:
    return {other.nic: other.reason for other in rejected(host_facts(*nics))}


ETH0 = nic("eth0", "10.0.0.1")


def test_a_plain_host_has_its_interfaces_in_order() -> None:
    assert names(nic("eno1", "10.0.0.1"), nic("ens5", "10.1.0.1")) == ["eno1", "ens5"]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (nic("docker0", "172.17.0.1", kind="bridge"), "made by Docker"),
        (nic("br-4f1d09ac3b52", "172.18.0.1", kind="bridge"), "made by Docker"),
        (nic("virbr0", "192.168.122.1", kind="bridge"), "made by libvirt"),
        (nic("cni0", "10.244.0.1", kind="bridge"), "made by Kubernetes"),
        (nic("flannel.1", "10.244.0.0", kind="virtual"), "made by Kubernetes"),
        (nic("tailscale0", "100.64.0.1", kind="virtual"), "made by a VPN"),
        (nic("wg0", "10.9.0.1", kind="virtual"), "made by a VPN"),
        (nic("veth1a2b", "10.9.0.1", kind="virtual"), "made by a container engine"),
        (nic("wlp3s0", "10.0.0.9", kind="wlan"), "wireless"),
        (nic("eth9", "10.9.0.1", state="down"), "down"),
        (nic("eth9", "10.9.0.1", state="lowerlayerdown"), "down"),
        (nic("eth9"), "has no address"),
        (nic("eth9", "fd00::1/64"), "has IPv6 only"),
        (nic("eth9", "169.254.3.4/16"), "has a link-local address only"),
        (nic("macvlan0", "10.9.0.1", kind="virtual"), "virtual, while there are physical ones"),
        (nic("lan0", "10.9.0.1", kind="bridge"), "a bridge without members"),
    ],
    ids=lambda value: value.name if isinstance(value, NicFacts) else None,
)
def test_what_does_not_count_beside_a_physical_one(other: NicFacts, reason: str) -> None:
    assert names(ETH0, other) == ["eth0"]
    assert reasons(ETH0, other) == {other.name: reason}


def test_a_bond_counts_and_its_members_are_part_of_it() -> None:
    bond = nic("bond0", "10.0.0.1", kind="bond", speed=50_000, lower=("eth0", "eth1"))
    members = (nic("eth0", upper=("bond0",)), nic("eth1", upper=("bond0",)))
    assert names(bond, *members) == ["bond0"]
    assert reasons(bond, *members) == {"eth0": "part of bond0", "eth1": "part of bond0"}
    assert candidates(host_facts(bond, *members))[0].speed == 50_000


def test_a_vlan_counts_beside_its_parent_with_the_parents_speed_and_place() -> None:
    vlan = nic("eth0.7", "10.7.0.1", kind="vlan", speed=None, lower=("eth0",))
    parent = replace(ETH0, speed=25_000, numa_node=1, upper=("eth0.7",))
    found = candidates(host_facts(parent, vlan, gpu_numa_nodes=(1,)))
    assert [(each.nic, each.speed, each.near_gpus) for each in found] == [
        ("eth0", 25_000, True),
        ("eth0.7", 25_000, True),
    ]


def test_a_bridge_over_hardware_counts() -> None:
    """As hosts of virtual machines have it: the address moved to the bridge."""
    bridge = nic("vmbr0", "10.0.0.1", kind="bridge", speed=None, lower=("eno1", "tap100i0"))
    taps = nic("tap100i0", kind="virtual", upper=("vmbr0",))
    member = nic("eno1", upper=("vmbr0",), speed=10_000)
    (found,) = candidates(host_facts(bridge, member, taps))
    assert (found.nic, found.speed) == ("vmbr0", 10_000)


def test_where_nothing_is_physical_virtual_interfaces_count_and_have_no_speed() -> None:
    """Hosts made from namespaces: veth says 10 Gbit/s whatever it runs on."""
    facts = host_facts(
        nic("eth0", "10.77.0.11", kind="virtual", speed=10_000),
        nic("docker0", "172.17.0.1", kind="bridge"),
    )
    assert [(each.nic, each.speed) for each in candidates(facts)] == [("eth0", None)]


def test_ipoib_is_as_fast_as_its_rdma_port() -> None:
    port = RdmaPort(1, active=True, link_layer="InfiniBand", rate=400_000.0, gids=())
    device = replace(rdma("mlx5_0"), nics=("ib0",), ports=(port,))
    (found,) = candidates(host_facts(nic("ib0", "10.0.0.1", speed=None), rdma=(device,)))
    assert (found.rdma, found.speed) == (("mlx5_0",), 400_000)


def test_a_candidate_in_words() -> None:
    facts = host_facts(
        nic("eth0", "10.0.0.1", speed=100_000, mtu=9000, numa_node=0),
        rdma=(replace(rdma("mlx5_0"), nics=("eth0",)),),
        gpu_numa_nodes=(0, 1),
        default_nic="eth0",
    )
    assert str(candidates(facts)[0]) == (
        "100 Gbit/s, MTU 9000, RDMA mlx5_0, NUMA node 0 with GPUs, default route"
    )


@pytest.mark.parametrize(
    ("speed", "text"),
    [(None, "speed not known"), (100, "100 Mbit/s"), (2500, "2.5 Gbit/s"), (400_000, "400 Gbit/s")],
)
def test_speeds_in_words(speed: int | None, text: str) -> None:
    assert speed_text(speed) == text


def test_all_addresses_of_an_interface_are_known() -> None:
    (found,) = candidates(host_facts(nic("eth0", "10.0.0.1/31", "10.0.9.1/32", "fd00::1/64")))
    assert [str(address) for address in found.addresses] == ["10.0.0.1/31", "10.0.9.1/32"]
    linked = replace(ETH0, addresses=(Address("10.0.0.7", 24, "link"),))
    assert names(linked) == []
