"""The names and addresses that node containers get."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory, Nics
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.node_files import admission, hosts_file
from clusterctl.ray_cluster.topology import Topology
from tests.fakes.host_facts import host_facts, nic, rdma

NICS = {
    "gpu1": (nic("eth0", "10.0.0.1"), nic("eth1", "10.9.0.1"), nic("eth2", "10.8.0.1")),
    "gpu2": (nic("ens2", "10.0.0.2"), nic("ens3", "10.9.0.2"), nic("docker0", "172.17.0.1")),
}


def facts(**names: str) -> dict[str, HostFacts]:
    return {
        host: replace(host_facts(*nics), hostname=names.get(host, host))
        for host, nics in NICS.items()
    }


def topology(found: dict[str, HostFacts]) -> Topology:
    hosts = (
        Host(name="gpu1", address="10.0.0.1", role="head", nics=Nics(nccl="eth1", gloo="eth1")),
        Host(name="gpu2", address="10.0.0.2", nics=Nics(nccl="ens3", gloo="ens3")),
    )
    return resolve(Inventory(cluster="demo", image="i", hosts=hosts), found)


def names(host: str = "gpu1", **own: str) -> dict[str, list[str]]:
    """Address to names."""
    found = facts(**own)
    lines = hosts_file(topology(found), found, host).splitlines()
    return {fields[0]: fields[1:] for fields in map(str.split, lines)}


def test_every_address_in_use_has_a_name_and_the_nodes_name_is_its_node_ip() -> None:
    assert {ip: name for ip, name in names().items() if not ip.startswith("::ffff:")} == {
        "127.0.0.1": ["localhost"],
        "::1": ["localhost", "ip6-localhost", "ip6-loopback"],
        "10.0.0.1": ["gpu1"],
        "10.9.0.1": ["gpu1.eth1"],
        "10.0.0.2": ["gpu2"],
        "10.9.0.2": ["gpu2.ens3"],
    }


def test_addresses_have_names_in_the_form_that_sockets_for_both_families_see() -> None:
    mapped = {ip: name for ip, name in names().items() if ip.startswith("::ffff:")}
    assert mapped == {
        "::ffff:10.0.0.1": ["gpu1.mapped"],
        "::ffff:10.9.0.1": ["gpu1.eth1.mapped"],
        "::ffff:10.0.0.2": ["gpu2.mapped"],
        "::ffff:10.9.0.2": ["gpu2.ens3.mapped"],
    }


def test_what_a_host_calls_itself_is_its_node_ip_too() -> None:
    found = names(gpu1="Rack7-N1.example.com")
    assert found["10.0.0.1"] == ["gpu1", "rack7-n1.example.com", "rack7-n1"]


def test_namesakes_each_know_themselves_by_their_common_name() -> None:
    own = {"gpu1": "node", "gpu2": "node"}
    assert names("gpu1", **own)["10.0.0.1"] == ["gpu1", "node"]
    assert names("gpu1", **own)["10.0.0.2"] == ["gpu2"]
    assert names("gpu2", **own)["10.0.0.2"] == ["gpu2", "node"]


def test_names_of_the_inventory_come_before_those_of_hosts() -> None:
    swapped = names(gpu1="gpu2", gpu2="localhost")
    assert (swapped["10.0.0.1"], swapped["10.0.0.2"]) == (["gpu1"], ["gpu2"])
    assert swapped["127.0.0.1"] == ["localhost"]


def test_rdma_interfaces_count() -> None:
    found = {
        "gpu1": host_facts(
            nic("eth0", "10.0.0.1"), nic("ib0", "10.5.0.1"), rdma=(rdma("mlx5_0", nics=("ib0",)),)
        ),
    }
    host = Host(name="gpu1", address="10.0.0.1", role="head")
    placed = resolve(Inventory(cluster="demo", image="i", hosts=(host,)), found)
    node = replace(placed.nodes[0], rdma=("mlx5_0:1",))
    assert "10.5.0.1\tgpu1.ib0\n" in hosts_file(Topology((node,)), found, "gpu1")


def test_a_silent_host_is_known_by_its_node_ip() -> None:
    found = facts()
    placed = topology(found)
    del found["gpu2"]
    text = hosts_file(placed, found, "gpu1")
    assert "10.0.0.2\tgpu2\n" in text
    assert "10.9.0.2" not in text


def test_the_firewall_admits_the_addresses_in_use_and_closes_rays_ports() -> None:
    found = facts()
    hosts = tuple(Host(name=name, address="a", role="head") for name in ("gpu1",))
    network = {"trusted": ["10.7.0.0/24"]}
    inventory = Inventory(cluster="demo", image="i", hosts=hosts, network=network)  # type: ignore[arg-type]

    admitted = admission(inventory, topology(found), found)

    assert admitted.addresses == (
        "10.0.0.1", "10.0.0.2", "10.9.0.1", "10.9.0.2", "10.7.0.0/24",
    )  # fmt: skip
    assert admitted.ports[0] == "6379"
    assert "10001" in admitted.ports
    assert admitted.ports[-2:] == ("11000-11999", "8100-8199")
    assert admitted.complete
    assert not admission(inventory, topology(found), {"gpu1": found["gpu1"]}).complete
