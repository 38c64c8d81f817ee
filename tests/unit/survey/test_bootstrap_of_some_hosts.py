"""bootstrap --limit: hosts left out keep their place in the cluster, and need not answer."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from clusterctl.errors import Problems, RequirementsNotMet
from clusterctl.facts.model import Address, NicFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.ray_cluster.nodes import expected_nodes
from clusterctl.survey.cluster import topology_of, unseen
from tests.fakes.host_facts import host_facts
from tests.fakes.surveys import survey_of


def probe(ip: str) -> Probe:
    nic = NicFacts("eth0", "02:00:00:00:00:01", 1500, "up", 1000, "physical", None,
                   (Address(ip, 24, "global"),))  # fmt: skip
    return Probe(host_facts(nic), {}, (), (), None)


def inventory(**third: Any) -> Inventory:
    hosts = (
        Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),
        Host(name="gpu2", address="10.0.0.2", gpus=(Gpu(),)),
        Host(**{"name": "gpu3", "address": "10.0.0.3", "gpus": (Gpu(), Gpu()), **third}),
    )
    return Inventory(cluster="demo", image="vllm/vllm-openai:v0.33.0", hosts=hosts)


ANSWERS = {"gpu1": probe("10.0.0.1"), "gpu2": probe("10.0.0.2")}


def test_a_silent_host_stays_expected_when_the_inventory_tells_its_place() -> None:
    expected = expected_nodes(topology_of(survey_of(inventory(), ANSWERS)))
    assert [(node.host, node.node_ip, node.gpus) for node in expected] == [
        ("gpu1", "10.0.0.1", 1),
        ("gpu2", "10.0.0.2", 1),
        ("gpu3", "10.0.0.3", 2),
    ]


def test_node_ip_tells_the_place_of_a_host_known_by_name() -> None:
    loaded = inventory(address="gpu3.example", node_ip="10.0.0.33")
    assert topology_of(survey_of(loaded, ANSWERS)).node("gpu3").node_ip == "10.0.0.33"


@pytest.mark.parametrize(
    ("third", "lacking"),
    [
        ({"address": "gpu3.example"}, "node_ip"),
        ({"nics": {"control": "eth1"}}, "node_ip"),
        ({"gpus": ()}, "gpus"),
    ],
)
def test_a_place_that_only_the_silent_host_knows_is_asked_for(
    third: dict[str, Any], lacking: str
) -> None:
    with pytest.raises(RequirementsNotMet) as raised:
        topology_of(survey_of(inventory(**third), ANSWERS))
    assert raised.value.host == "gpu3"
    assert f"hosts.gpu3.{lacking}" in str(raised.value.hint)


def test_an_address_outside_the_clusters_subnet_is_not_taken_for_the_node_ip() -> None:
    loaded = inventory()
    network = loaded.network.model_copy(update={"subnet": ip_network("10.1.0.0/24")})
    with pytest.raises(RequirementsNotMet, match="node IP"):
        unseen(loaded.model_copy(update={"network": network}), loaded.hosts[2])


def test_two_places_that_are_one_are_told_apart() -> None:
    """Silent hosts are held to it too: Ray would wait for GPUs for ever."""
    with pytest.raises((RequirementsNotMet, Problems), match=r"10\.0\.0\.2 is also that of"):
        topology_of(survey_of(inventory(node_ip="10.0.0.2"), ANSWERS))


def test_interfaces_of_the_hosts_that_answer_are_as_ever() -> None:
    everywhere = topology_of(survey_of(inventory(), {**ANSWERS, "gpu3": probe("10.0.0.3")}))
    some = topology_of(survey_of(inventory(), ANSWERS))
    assert some.nodes[:2] == everywhere.nodes[:2]
    assert replace(some.nodes[2], control_nic="eth0").node_ip == everywhere.nodes[2].node_ip
