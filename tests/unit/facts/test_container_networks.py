"""Docker's networks and the site's: https://github.com/kasmtech/workspaces-issues/issues/634,
https://github.com/moby/libnetwork/issues/779 and https://github.com/docksal/docksal/issues/1397."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

from clusterctl.facts.container_networks import (
    bridge_choices,
    container_network_notes,
    container_network_problems,
    free_bridge,
    site_networks,
)
from clusterctl.facts.model import HostFacts, HostRoute, NicFacts
from clusterctl.inventory.model import Host, Inventory
from tests.fakes.host_facts import ENGINE, host_facts, nic

DOCKER0 = nic("docker0", "172.17.0.1/16", kind="bridge", state="down")
BARE = replace(ENGINE, installed=False, running=False)


def inventory(*addresses: str) -> Inventory:
    hosts = tuple(Host(name=name, address=ip) for name, ip in zip("ab", addresses, strict=False))
    return Inventory(cluster="c", image="i", hosts=hosts)


def pair(*docker: NicFacts, second: str = "172.17.0.5") -> dict[str, HostFacts]:
    a = host_facts(nic("eno1", "172.16.0.5/24"), *docker, default_nic="eno1")
    return {"a": a, "b": host_facts(nic("eno1", f"{second}/24"))}


def test_a_bridge_that_hides_another_host_is_a_problem_with_a_free_address() -> None:
    (problem,) = container_network_problems(inventory("172.16.0.5", "172.17.0.5"), pair(DOCKER0))
    assert problem.host == "a"
    assert "172.17.0.0/16 (docker0), which hides b (172.17.0.5)" in problem.summary
    assert '"bip": "172.30.213.1/24"' in str(problem.hint)


def test_another_network_of_docker_is_to_be_removed() -> None:
    compose = nic("br-4f1d09ac3b52", "10.0.0.1/16", kind="bridge")
    (problem,) = container_network_problems(
        inventory("172.16.0.5", "10.0.7.1"), pair(compose, second="10.0.7.1")
    )
    assert "docker network rm" in str(problem.hint)


def test_a_network_that_hides_nobody_is_a_note() -> None:
    facts = pair(DOCKER0, second="172.16.0.6")
    of_a = replace(
        facts["a"], routes=(HostRoute("eno1", IPv4Network("172.16.0.0/12"), 100, direct=False),)
    )
    asked = inventory("172.16.0.5", "172.16.0.6")
    assert list(container_network_problems(asked, {**facts, "a": of_a})) == []
    (note,) = container_network_notes(asked, {**facts, "a": of_a})
    assert "docker0 of Docker has 172.17.0.0/16, and the site uses 172.16.0.0/12" in note


def test_before_docker_is_there_its_bridge_gets_another_network() -> None:
    facts = pair()
    bare = {"a": replace(facts["a"], engine=BARE), "b": facts["b"]}
    found = bridge_choices(inventory("172.16.0.5", "172.17.0.5"), bare)
    assert found == {
        "a": "Docker's bridge on 172.30.213.0/24: the site uses 172.17.0.0/16, which Docker would "
        "take"
    }


def test_a_default_route_in_two_halves_is_no_network_of_the_site() -> None:
    halves = tuple(
        HostRoute("tun0", IPv4Network(text), 50, direct=False)
        for text in ("0.0.0.0/1", "128.0.0.0/1")
    )
    vpn = host_facts(
        nic("eno1", "10.0.0.1"), nic("tun0", "10.8.0.2", kind="tun"), DOCKER0, routes=halves
    )
    assert free_bridge(site_networks(inventory("10.0.0.1"), {"a": vpn})) is None


def test_a_network_of_a_container_is_none_of_the_site() -> None:
    facts = {"a": host_facts(nic("eno1", "10.0.0.1"), DOCKER0)}
    assert free_bridge(site_networks(inventory("10.0.0.1"), facts)) is None
    assert list(container_network_notes(inventory("10.0.0.1"), facts)) == []


def test_a_narrower_network_of_the_host_itself_is_not_hidden() -> None:
    facts = {
        "a": host_facts(nic("eno1", "172.17.5.1/24"), DOCKER0),
        "b": host_facts(nic("eno1", "172.17.5.2/24")),
    }
    assert list(container_network_problems(inventory("172.17.5.1", "172.17.5.2"), facts)) == []
