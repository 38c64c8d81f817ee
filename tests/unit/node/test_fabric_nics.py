"""Which interfaces an environment chooses, by the libraries' own grammars; what real ones have."""

from __future__ import annotations

import pytest

from clusterctl.node.documents import BrokenNic, NodeDocument
from clusterctl.node.fabric_nics import FabricAddress, Interface, interfaces, places
from clusterctl.node.probes import Links
from clusterctl.node.timing import Timing

ENV = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
FOUND = [
    Interface("lo", ("127.0.0.1",), running=True),
    Interface("eth0", ("10.0.0.1", "fd00::1"), running=True),
    Interface("eth1", ("10.1.0.1",), running=True),
    Interface("eth10", ("10.2.0.1",), running=True),
    Interface("eth2", ("10.3.0.1",), running=False),
    Interface("eth3", (), running=True),
]


def chosen(node_ip: str = "10.0.0.1", **env: str) -> list[tuple[str, str, str, str]]:
    return [
        (place.purpose, place.nic, place.ip, place.problem) for place in places(env, node_ip, FOUND)
    ]


def test_without_variables_only_the_node_ip_counts() -> None:
    assert chosen() == [("control", "eth0", "10.0.0.1", "")]


def test_one_interface_for_two_purposes_is_one_place() -> None:
    found = chosen(GLOO_SOCKET_IFNAME="eth1", NCCL_SOCKET_IFNAME="=eth1")
    assert found[1:] == [("gloo, nccl", "eth1", "10.1.0.1", "")]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("=eth1", ["eth1"]),
        ("eth1", ["eth1", "eth10"]),
        ("=eth1,eth10", ["eth1", "eth10"]),
        ("^lo", []),
        ("=ib0", ["ib0"]),
        ("ib", ["ib"]),
    ],
)
def test_nccls_grammar(value: str, names: list[str]) -> None:
    assert [place[1] for place in chosen(NCCL_SOCKET_IFNAME=value)[1:]] == names


@pytest.mark.parametrize(
    ("name", "problem"),
    [("eth7", "missing"), ("eth2", "down"), ("eth3", "no address"), ("eth1", "")],
)
def test_what_an_interface_lacks(name: str, problem: str) -> None:
    assert chosen(GLOO_SOCKET_IFNAME=name)[1][3] == problem


def test_an_ipv6_node_is_reached_by_ipv6() -> None:
    found = places({"GLOO_SOCKET_IFNAME": "eth0"}, "fd00::1", FOUND)
    assert found == [FabricAddress("control, gloo", "eth0", "fd00::1")]


def test_a_second_address_of_an_interface_counts() -> None:
    found = [Interface("eth0", ("10.0.0.1", "10.0.0.9"), running=True)]
    assert places({}, "10.0.0.9", found) == [FabricAddress("control", "eth0", "10.0.0.9")]


def test_the_loopback_has_all_of_its_network() -> None:
    assert chosen("127.0.0.3")[0] == ("control", "lo", "127.0.0.3", "")


def test_a_node_ip_that_is_nowhere_is_told() -> None:
    assert chosen("10.9.9.9")[0] == ("control", "", "10.9.9.9", "missing")


def test_this_machines_loopback_is_found() -> None:
    (loopback,) = [one for one in interfaces() if one.name == "lo"]
    assert "127.0.0.1" in loopback.addresses
    assert loopback.running


def test_nics_that_stop_carrying_are_told_while_they_do() -> None:
    seen = list(FOUND)
    document = NodeDocument("demo", "gpu1", "head", "10.0.0.1", "10.0.0.1", [], ENV, [])
    links = Links(Timing(nics_every=1.0), lambda: seen)
    links.tick(0.0, document)
    assert links.broken == []
    seen[2] = Interface("eth1", ("10.1.0.1",), running=False)
    links.tick(0.5, document)
    assert links.broken == []
    links.tick(1.0, document)
    assert links.broken == [BrokenNic("eth1", "gloo, nccl", "down")]
    seen[2] = Interface("renamed", ("10.1.0.1",), running=True)
    links.tick(2.0, document)
    assert links.broken == [BrokenNic("eth1", "gloo, nccl", "missing")]
    seen[1] = Interface("eth0", (), running=True)
    links.tick(3.0, document)
    assert links.broken[0] == BrokenNic("", "control", "missing")
    seen[:] = FOUND
    links.tick(4.0, document)
    assert links.broken == []
