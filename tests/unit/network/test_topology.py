from __future__ import annotations

from typing import Any

import pytest

from clusterctl.errors import Problems, RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory, Nics
from clusterctl.network.choice import public_addresses, resolve
from clusterctl.ray_cluster.topology import Node
from tests.fakes.host_facts import gpus, host_facts, nic, rdma


def inventory(*hosts: Host, **settings: Any) -> Inventory:
    return Inventory(cluster="demo", image="i", hosts=hosts, **settings)


def head(**settings: Any) -> Host:
    return Host(**{"name": "a", "address": "a.example", "role": "head", **settings})


def only_node(host: Host, facts: HostFacts, **settings: Any) -> Node:
    return resolve(inventory(host, **settings), {"a": facts}).nodes[0]


TWO_NICS = host_facts(nic("eth0", "10.0.0.1"), nic("ens2", "10.9.0.1"))


def test_node_ip_in_the_inventory_comes_first() -> None:
    node = only_node(
        head(node_ip="10.9.0.1", nics=Nics(control="eth0")),
        TWO_NICS,
        network={"subnet": "10.0.0.0/24"},
    )
    assert (node.node_ip, node.control_nic) == ("10.9.0.1", "ens2")
    assert node.explain[0] == "node IP 10.9.0.1 on ens2: node_ip in the inventory"


def test_the_speed_is_that_of_the_nodes_own_network() -> None:
    slow = nic("eth0", "10.0.0.1", speed=1_000)
    facts = host_facts(slow, nic("ens2", "10.9.0.1", speed=100_000))
    assert only_node(head(node_ip="10.0.0.1"), facts).speed == 1_000


def test_a_hosts_control_nic_comes_before_the_subnet_of_all() -> None:
    node = only_node(head(nics=Nics(control="ens2")), TWO_NICS, network={"subnet": "10.0.0.0/24"})
    assert (node.node_ip, node.nccl_nics, node.gloo_nic) == ("10.9.0.1", ("ens2",), "ens2")


def test_the_subnet_comes_before_the_ssh_address() -> None:
    node = only_node(head(address="10.0.0.1"), TWO_NICS, network={"subnet": "10.9.0.0/24"})
    assert (node.node_ip, node.control_nic) == ("10.9.0.1", "ens2")


def test_the_control_nic_comes_before_the_ssh_address() -> None:
    node = only_node(head(address="10.0.0.1", nics=Nics(control="ens2")), TWO_NICS)
    assert node.node_ip == "10.9.0.1"


def test_the_ssh_address_counts_when_the_host_holds_it() -> None:
    assert only_node(head(address="10.9.0.1"), TWO_NICS).control_nic == "ens2"


def test_else_the_only_candidate_is_taken() -> None:
    facts = host_facts(
        nic("eth0", "10.0.0.1"),
        nic("docker0", "172.17.0.1", kind="bridge"),
        nic("tailscale0", "100.64.0.1", kind="virtual"),
        nic("eth9", "10.8.0.1", state="down"),
        nic("eth7", "fd00::1/64"),
    )
    assert only_node(head(), facts).node_ip == "10.0.0.1"


def test_nothing_is_guessed_between_two_candidates() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        only_node(head(), TWO_NICS)
    assert (
        str(caught.value)
        == "a: cannot choose its node IP: no usable interface has the default route (10.0.0.1 "
        "on eth0, 10.9.0.1 on ens2)"
    )
    assert caught.value.hint == "set network.subnet, or hosts.a.node_ip"


def test_ipv6_by_subnet() -> None:
    facts = host_facts(nic("eth0", "10.0.0.1", "fd00::1/64"))
    assert only_node(head(), facts, network={"subnet": "fd00::/64"}).node_ip == "fd00::1"


def test_different_nics_for_nccl_and_gloo() -> None:
    node = only_node(head(address="10.0.0.1", nics=Nics(nccl="ens2", gloo="eth0")), TWO_NICS)
    assert (node.node_ip, node.nccl_nics, node.gloo_nic) == ("10.0.0.1", ("ens2",), "eth0")
    assert node.explain[1] == "NCCL on ens2: named in the inventory"


@pytest.mark.parametrize(
    ("host", "settings", "words"),
    [
        (head(node_ip="10.7.0.1"), {}, "node_ip 10.7.0.1 is on none of its interfaces"),
        (head(), {"network": {"subnet": "10.7.0.0/24"}}, "has no address in it"),
        (head(), {"network": {"subnet": "10.0.0.0/8"}}, "has 10.0.0.1 on eth0, 10.9.0.1 on ens2"),
        (head(nics=Nics(control="eth5")), {}, "nics.control names eth5, which does not exist"),
        (head(address="10.0.0.1", nics=Nics(nccl="eth5")), {}, "nics.nccl names eth5"),
        (head(address="10.0.0.1", nics=Nics(rdma=("mlx5_0",))), {}, "nics.rdma names mlx5_0"),
    ],
)
def test_what_the_host_does_not_have(host: Host, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RequirementsNotMet, match=words) as caught:
        only_node(host, TWO_NICS, **settings)
    assert caught.value.hint
    assert caught.value.host == "a"


def test_a_chosen_nic_that_is_down() -> None:
    facts = host_facts(nic("eth0", "10.0.0.1"), nic("ens2", state="down"))
    with pytest.raises(RequirementsNotMet, match="ens2, chosen for nccl, is down"):
        only_node(head(address="10.0.0.1", nics=Nics(nccl="ens2")), facts)


def test_problems_of_all_hosts_come_at_once() -> None:
    hosts = (head(), Host(name="b", address="b"), Host(name="c", address="c"))
    with pytest.raises(Problems) as caught:
        resolve(
            inventory(*hosts, network={"subnet": "10.7.0.0/24"}), {"a": TWO_NICS, "b": TWO_NICS}
        )
    assert [error.host for error in caught.value.errors] == ["a", "b", "c"]
    assert "could not be probed" in str(caught.value.errors[2])


def test_two_hosts_with_one_node_ip() -> None:
    hosts = (head(address="10.0.0.1"), Host(name="b", address="10.0.0.1"))
    with pytest.raises(RequirementsNotMet, match=r"a and b have 10\.0\.0\.1"):
        resolve(inventory(*hosts), dict.fromkeys("ab", host_facts(nic("eth0", "10.0.0.1"))))


def test_promised_gpus_count_and_without_a_promise_those_found() -> None:
    facts = host_facts(nic("eth0", "10.0.0.1"), gpus=gpus(8))
    assert only_node(head(gpus=2), facts).gpus == 2
    assert only_node(head(), facts).gpus == 8
    assert only_node(head(), facts, accelerator="cpu").gpus == 0


def test_rdma_is_used_when_every_host_has_an_active_device() -> None:
    hosts = (head(), Host(name="b", address="b"))
    both = {
        "a": host_facts(nic("eth0", "10.0.0.1"), rdma=(rdma("mlx5_0"), rdma("x", active=False))),
        "b": host_facts(nic("eth0", "10.0.0.2"), rdma=(rdma("mlx5_1"),)),
    }
    nodes = resolve(inventory(*hosts), both).nodes
    assert [node.rdma for node in nodes] == [("mlx5_0",), ("mlx5_1",)]

    nodes = resolve(inventory(*hosts), {**both, "b": host_facts(nic("eth0", "10.0.0.2"))}).nodes
    assert [node.rdma for node in nodes] == [(), ()]
    assert nodes[0].explain[-1] == "RDMA off: no active device on b"


@pytest.mark.parametrize("ip", ["8.8.8.8", "2600::1"])
def test_a_node_ip_of_the_internet_is_an_error_without_a_firewall(ip: str) -> None:
    facts = {"a": host_facts(nic("eth0", ip))}

    def found(**network: Any) -> list[RequirementsNotMet]:
        chosen = inventory(head(address=ip), network=network)
        return public_addresses(chosen, resolve(chosen, facts))

    (error,) = found()
    assert str(error).startswith(f"a: its node IP {ip} is a public address")
    assert "network.firewall: true" in (error.hint or "")
    assert found(firewall=True) == []
    assert found(public=True) == []


@pytest.mark.parametrize("ip", ["10.0.0.1", "100.64.0.1", "fd00::1", "192.168.1.1"])
def test_a_private_node_ip_is_fine(ip: str) -> None:
    chosen = inventory(head(address=ip))
    assert public_addresses(chosen, resolve(chosen, {"a": host_facts(nic("eth0", ip))})) == []
