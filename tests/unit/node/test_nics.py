"""Which NICs of the cluster are broken, and what a real machine has."""

from __future__ import annotations

import pytest

from clusterctl.node.documents import BrokenNic, NodeDocument
from clusterctl.node.nics import Interface, broken_nics, interfaces
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


def broken(node_ip: str = "10.0.0.1", **env: str) -> list[BrokenNic]:
    return broken_nics(env, node_ip, FOUND)


@pytest.mark.parametrize(
    ("name", "problem"), [("eth7", "missing"), ("eth2", "down"), ("eth3", "no address")]
)
def test_what_an_interface_lacks(name: str, problem: str) -> None:
    env = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"=eth1,{name}"}
    assert broken(**env) == [BrokenNic(name, "gloo, nccl", problem)]


def test_nothing_is_broken() -> None:
    assert broken() == []
    assert broken(**ENV) == []
    assert broken("127.0.0.3") == [], "the loopback has all of its network"


def test_an_ipv6_node_needs_ipv6() -> None:
    assert broken("fd00::1", GLOO_SOCKET_IFNAME="eth0") == []
    assert broken("fd00::1", **ENV) == [BrokenNic("eth1", "gloo, nccl", "no address")]


def test_a_node_ip_that_no_nic_has() -> None:
    assert broken("10.9.9.9") == [BrokenNic("", "control", "missing")]


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
