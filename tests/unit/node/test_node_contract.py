from __future__ import annotations

from dataclasses import replace

from clusterctl.node.contract import breaches, free_gpus
from clusterctl.node.documents import ExpectedNode, RayNode

EXPECTED = [ExpectedNode("a", "10.0.0.1", 1), ExpectedNode("b", "10.0.0.2", 2)]
A = RayNode("n1", "10.0.0.1", "a", True, True, 1, 0, 8, "2.60.0", "3.12.1")
B = RayNode("n2", "10.0.0.2", "b", True, False, 2, 1, 8, "2.60.0", "3.12.1")


def said(*nodes: RayNode) -> list[str]:
    return [f"{breach.host} {breach.summary}" for breach in breaches(EXPECTED, nodes)]


def test_the_contract_holds_when_every_node_is_there_once() -> None:
    assert said(A, B) == []
    assert free_gpus([A, B, replace(B, alive=False)]) == 2


def test_a_dead_former_self_does_no_harm() -> None:
    assert said(A, replace(B, node_id="n0", alive=False), B) == []


def test_a_missing_node() -> None:
    assert said(A) == ["b has not joined Ray"]


def test_a_dead_node_says_why() -> None:
    dead = replace(B, alive=False, death_reason="no heartbeats")
    assert said(A, dead) == ["b left Ray: no heartbeats"]


def test_a_node_that_is_there_twice() -> None:
    assert said(A, B, replace(B, node_id="n3")) == ["b is in Ray 2 times (10.0.0.2, 10.0.0.2)"]


def test_the_wrong_address_and_too_few_gpus_both() -> None:
    assert said(A, replace(B, node_ip="192.168.0.2", gpus=1)) == [
        "b joined Ray as 192.168.0.2, and its node IP is 10.0.0.2",
        "b brought 1 GPUs to Ray, but the inventory declares 2",
    ]


def test_more_gpus_than_promised_are_fine() -> None:
    assert said(replace(A, gpus=8), B) == []


def test_a_node_that_nobody_expects() -> None:
    stranger = replace(A, node_id="n9", name="c", node_ip="10.0.0.9", head=False)
    assert said(A, B, stranger) == ["c is in Ray at 10.0.0.9, and not in the inventory"]


def test_differing_versions_name_the_one_that_differs_from_the_head() -> None:
    assert said(A, replace(B, ray_version="2.56.1", python_version="3.11.2")) == [
        "b runs Ray 2.56.1, and the others 2.60.0",
        "b runs Python 3.11, and the others 3.12",
    ]


def test_patch_releases_of_python_may_differ() -> None:
    assert said(A, replace(B, python_version="3.12.99")) == []


def test_unknown_versions_are_not_compared() -> None:
    assert said(A, replace(B, ray_version="", python_version="")) == []
