"""Which hosts the replicas of a service get."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.node.documents import (
    GatewayState,
    Rank,
    ServiceDocument,
    ServiceState,
    declared_dir,
    to_json,
)
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.placement import Placement, Site
from clusterctl.planning.replicas import Seats, Sizes, seat_replicas
from clusterctl.planning.service_plan import ServicePlan
from tests.fakes.host_facts import nic
from tests.unit.planning.test_prepared_service import Cluster


def hosts(*counts: int) -> list[Site]:
    return [Site(f"gpu{n}", parse_gpus(f"{count}xH100")) for n, count in enumerate(counts, 1)]


@pytest.mark.parametrize(
    ("counts", "sizes", "most", "seats"),
    [
        ((4, 4), (1, 1), 4, [("gpu1",), ("gpu2",), ("gpu1",), ("gpu2",)]),
        ((4, 2), (2, 1), None, [("gpu1", "gpu1"), ("gpu2", "gpu2"), ("gpu1", "gpu1")]),
        ((3, 3), (2, 1), None, [("gpu1", "gpu1"), ("gpu2", "gpu2")]),
        ((1, 2), (1, 2), None, [("gpu2", "gpu2")]),
        ((1, 1, 1, 1), (1, 2), None, [("gpu1", "gpu2"), ("gpu3", "gpu4")]),
        ((1,), (2, 1), None, []),
        ((4, 4), (1, 1, 4), 2, [("gpu1",) * 4, ("gpu2",) * 4]),
        ((1, 3), (1, 1, 4), 1, [("gpu2", "gpu2", "gpu2", "gpu1")]),
        ((2, 2), (2, 1, 2), 1, [("gpu1", "gpu1", "gpu2", "gpu2")]),
        ((3, 1), (2, 1, 2), 1, []),
    ],
)
def test_replicas_stay_in_a_host_and_spread_over_hosts(
    counts: tuple[int, ...], sizes: tuple[int, ...], most: int | None, seats: list[Seats]
) -> None:
    assert seat_replicas(hosts(*counts), Sizes(*sizes), (), most) == seats


def test_replicas_that_run_keep_their_gpus() -> None:
    found = seat_replicas(hosts(2, 2), Sizes(1, 1), [("gpu1",), ("gpu1",)], 3)
    assert found == [("gpu2",)]


def test_a_gpu_that_is_too_small_is_left_out() -> None:
    def fits(placement: Placement) -> bool:
        return placement.seats[0].host != "gpu1"

    assert seat_replicas(hosts(1, 1, 1), Sizes(1, 1), (), None, fits) == [("gpu2",), ("gpu3",)]


def replicas(
    cluster: Cluster, count: str | None, *own: ServicePlan | ServiceDocument
) -> ServicePlan:
    return cluster.prepare(tp=1, replicas=count, declared=own)


def test_each_replica_has_a_document_on_its_own_host() -> None:
    plan = replicas(Cluster("nvidia"), "2")

    documents = [each.document for each in plan.replicas]
    assert [document.name for document in documents] == ["qwen", "qwen@2"]
    assert [document.node_ips for document in documents] == [["10.0.0.1"], ["10.0.0.2"]]
    assert [(document.host, document.port) for document in documents] == [
        ("10.0.0.1", 8100),
        ("10.0.0.2", 8100),
    ]
    assert plan.members.port == 8000
    assert [member.host for member in plan.members.members] == ["gpu1", "gpu2"]


def test_one_replica_may_span_hosts_behind_the_gateway_and_stays_there() -> None:
    cluster = Cluster("nvidia")
    plan = cluster.prepare(tp=2, replicas="1")
    again = cluster.prepare(tp=2, replicas="1", declared=(plan,))

    assert (plan.members.port, [one.port for one in plan.members.members]) == (8000, [8100])
    assert plan.document.node_ips == ["10.0.0.1", "10.0.0.2"]
    assert plan.document.tensor_parallel == 2
    assert (again.document, again.members) == (plan.document, plan.members)


def test_as_many_as_fit_is_a_number_that_a_second_run_keeps() -> None:
    cluster = Cluster("nvidia")
    plan = replicas(cluster, "max")
    again = replicas(cluster, None, plan)

    assert again.members == plan.members
    assert [each.document for each in again.replicas] == [each.document for each in plan.replicas]
    assert again.surplus == ()


def test_more_than_fit_are_refused_with_how_many_would() -> None:
    with pytest.raises(DoesNotFit, match="3 replicas of qwen need 1 GPU each, and 2") as caught:
        replicas(Cluster("nvidia"), "3")
    assert caught.value.hint == "--replicas 2"


def test_fewer_replicas_keep_the_first_and_name_the_surplus() -> None:
    cluster = Cluster("nvidia")
    two = replicas(cluster, "2")
    one = replicas(cluster, "1", two)

    assert [each.document for each in one.replicas] == [two.document]
    assert [document.name for document in one.surplus] == ["qwen@2"]


def older(plan: ServicePlan) -> ServiceDocument:
    """What a clusterctl before replicas declared: on the head, at the port of clients."""
    argv = ["8000" if word == "8100" else word for word in plan.document.argv]
    return replace(plan.document, argv=argv, port=8000, node_ips=[])


def test_what_an_older_clusterctl_declared_becomes_a_replica_at_the_same_port() -> None:
    cluster = Cluster("nvidia")
    old = older(cluster.prepare(tp=1))
    plan = replicas(cluster, None, old)
    assert plan.members.port == 8000, "that clients know"
    assert [each.number for each in plan.surplus] == [1], "nobody knows on which GPU it is"

    rank = Rank(0, 0, 0, "gpu1", "10.0.0.1", 7)
    runs = ServiceState("qwen", "ready", 0.0, ranks=[rank])
    cluster.state = replace(cluster.state, services=[runs])
    plan = replicas(cluster, "2", old)
    assert (plan.members.port, plan.surplus) == (8000, ())
    assert [each.document.port for each in plan.replicas] == [8100, 8100]
    assert (plan.replicas[0].old, plan.replicas[0].restarts) == (old, True)


def test_replicas_whose_list_was_lost_stay_where_they_are() -> None:
    cluster = Cluster("nvidia")
    two = replicas(cluster, "2")
    copy = f"{declared_dir('demo')}/members/qwen.json"
    cluster.head_files[copy] = to_json(two.members).encode()
    again = replicas(cluster, None, *(each.document for each in two.replicas))
    assert [each.document for each in again.replicas] == [each.document for each in two.replicas]
    assert again.members == two.members


def test_another_tp_needs_a_stop() -> None:
    cluster = Cluster("nvidia")
    one = replicas(cluster, "1", replicas(cluster, "2"))
    with pytest.raises(UsageError, match="replicas change one at a time") as caught:
        cluster.prepare(tp=2, replicas="1", declared=(one,))
    assert caught.value.hint == "clusterctl stop qwen, then serve again"


def test_clients_use_the_gateway_where_there_is_one() -> None:
    cluster = Cluster("nvidia")
    assert replicas(cluster, "2").endpoint.url == "http://10.0.0.1:8100"
    cluster.state = replace(cluster.state, gateway=GatewayState("idle"))
    plan = replicas(cluster, "2")
    assert plan.endpoint.url == "http://10.0.0.1:8000"
    assert plan.replicas[1].endpoint.url == "http://10.0.0.2:8100"


def test_the_port_that_was_asked_for_is_the_gateways_when_asked_for_again() -> None:
    cluster = Cluster("nvidia")
    two = cluster.prepare("--port", "8000", tp=1, replicas="2")
    head = cluster.answers["gpu1"]
    facts = replace(head.facts, listening_ports=(8000, 8100))
    cluster.answers["gpu1"] = replace(head, facts=facts)
    again = cluster.prepare("--port", "8000", tp=1, replicas="2", declared=(two,))
    assert again.members == two.members


def test_a_service_that_gets_replicas_keeps_its_address() -> None:
    cluster = Cluster("nvidia")
    cluster.state = replace(cluster.state, gateway=GatewayState("idle"))
    head = cluster.answers["gpu1"]
    nics = (*head.facts.nics, nic("eth9", "10.9.0.1"))
    cluster.answers["gpu1"] = replace(head, facts=replace(head.facts, nics=nics))
    first, *others = cluster.inventory.hosts
    first = first.model_copy(update={"address": "10.9.0.1", "node_ip": "10.0.0.1"})
    cluster.inventory = cluster.inventory.model_copy(update={"hosts": (first, *others)})

    single = cluster.prepare(tp=1)
    assert single.endpoint.url == "http://10.9.0.1:8000"
    two = cluster.prepare(tp=1, replicas="2", declared=(single,))
    assert two.endpoint.url == single.endpoint.url
    assert two.members.listen == "10.9.0.1"
