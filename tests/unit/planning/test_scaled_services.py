"""Services whose replicas sleep while they are not needed: what is declared, and the memory of
hosts."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.inventory.model import Gpu
from clusterctl.models.name import resolve
from clusterctl.node.documents import (
    DrainedHosts,
    GatewayState,
    NodeState,
    ServiceState,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.planning.moves import ServiceMoves, moves_from, scaling
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.planning.sleepers import parked, require_one_replica
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.service import difference, needs_restart
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.survey import Survey, drained_file
from clusterctl.units import GIB
from tests.fakes.host_facts import gpus
from tests.unit.planning.test_prepared_service import Cluster


def planned(cluster: Cluster, replicas: str | None, *own: ServicePlan) -> ServicePlan:
    with_gateway(cluster)
    return cluster.prepare(tp=1, replicas=replicas, declared=own)


def with_gateway(cluster: Cluster) -> None:
    cluster.state = replace(cluster.state, gateway=GatewayState("up"))


def asked_again(cluster: Cluster, own: ServicePlan, *flags: str, **options: Any) -> ServicePlan:
    """What `serve` plans for the service without --replicas."""
    return served(cluster.survey(own), *flags, **options)


def served(survey: Survey, *flags: str, **options: Any) -> ServicePlan:
    given = Options("/data/models/qwen", 1, name="qwen", **options)
    request = read_request(given, (), parse_arguments(flags))
    return plan_service(survey, request, resolve(request.model, survey.inventory.models))


def declared(cluster: Cluster, moves: ServiceMoves) -> Survey:
    """What the hosts say once the moves are done."""
    documents = [each.document for each in (*moves.staying, *moves.new)]
    listed = to_json(moves.members).encode()
    cluster.head_files[f"{NodePaths('demo').members}/qwen.json"] = listed
    return cluster.survey(*documents)


def awake(moves: ServiceMoves) -> dict[int, bool]:
    documents = [each.document for each in (*moves.staying, *moves.new)]
    return {each.replica: each.stays_awake for each in documents}


def test_all_replicas_have_one_command_and_the_first_never_sleeps() -> None:
    plan = planned(Cluster("nvidia"), "1..2")

    first, second = (each.document for each in plan.replicas)
    assert "--enable-sleep-mode" in first.argv
    assert not needs_restart(first, replace(second, argv=first.argv))
    assert [each.stays_awake for each in (first, second)] == [True, False]
    assert [each.idle for each in (first, second)] == [300.0, 300.0]
    assert (plan.members.least, plan.members.asked) == (1, 2)
    assert any(note.startswith("at least 1 stays awake; others are asked") for note in plan.notes)


@pytest.mark.parametrize(
    ("replicas", "note"),
    [
        ("0..1", "its replica sleeps after 300 s without a request"),
        ("0..2", "all may sleep; more are asked while"),
        ("2..max", "all replicas stay awake: there are no others"),
    ],
)
def test_the_note_says_what_there_is(replicas: str, note: str) -> None:
    notes = planned(Cluster("nvidia"), replicas).notes
    assert any(each.startswith(note) for each in notes), notes


def test_an_image_without_gateway_has_no_range() -> None:
    with pytest.raises(UsageError, match="needs the gateway") as refused:
        Cluster("nvidia").prepare(tp=1, replicas="1..2")
    assert str(refused.value.hint).startswith("--replicas 2, or an image with HAProxy")


def test_another_least_restarts_nothing_and_is_said() -> None:
    cluster = Cluster("nvidia")
    one, none = planned(cluster, "1..2"), planned(cluster, "0..2")
    assert difference(one.document, none.document) == ["awake: always → as needed"]
    assert not difference(one.replicas[1].document, none.replicas[1].document)
    assert not needs_restart(one.document, none.document)


def test_serving_again_without_a_number_keeps_the_range() -> None:
    cluster = Cluster("nvidia")
    plan = planned(cluster, "1..2")
    again = planned(cluster, None, plan)
    assert again.members == plan.members
    assert [each.document for each in again.replicas] == [each.document for each in plan.replicas]


def test_a_number_ends_it() -> None:
    cluster = Cluster("nvidia")
    plan = planned(cluster, "1..2")
    fixed = planned(cluster, "2", plan)
    assert (fixed.members.least, fixed.document.sleeps) == (-1, False)
    assert "awake: no longer given (was always)" in difference(plan.document, fixed.document)


@pytest.mark.parametrize("replicas", ["0..1", "1..2"])
@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        ({"standby": True}, (), "--standby are two uses of sleep"),
        ({"swap": True}, (), "--swap are two uses of sleep"),
        ({}, ("--enable-lora",), "without adapters"),
        ({}, ("--api-server-count", "2"), "one API server"),
        ({}, ("--no-enable-sleep-mode",), "sleep mode"),
    ],
)
def test_what_contradicts_a_range_is_refused_where_it_is_kept(
    replicas: str, options: dict[str, Any], flags: tuple[str, ...], words: str
) -> None:
    cluster = Cluster("nvidia")
    plan = planned(cluster, replicas)
    with pytest.raises(UsageError, match=words) as refused:
        asked_again(cluster, plan, *flags, **options)
    number = 1 if options else plan.members.asked
    assert f"or end the range with --replicas {number}" in str(refused.value.hint)
    assert f"the range of qwen (--replicas {replicas})" in refused.value.summary


def test_its_target_can_be_changed_alone() -> None:
    cluster = Cluster("nvidia")
    plan = planned(cluster, "1..2")
    changed = asked_again(cluster, plan, ttft=2.0)
    assert (changed.members.ttft, changed.members.least, len(changed.replicas)) == (2.0, 1, 2)
    assert asked_again(cluster, changed).members == changed.members

    fixed = planned(cluster, "2", plan)
    with pytest.raises(UsageError, match="--ttft is kept by waking more replicas"):
        asked_again(cluster, fixed, ttft=2.0)


def test_another_replica_stays_awake_where_the_first_moves() -> None:
    cluster = with_two_gpus_each(512 * GIB)
    plan = planned(cluster, "1..2")
    first, second = plan.replicas

    (moves,) = moves_from(cluster.survey(plan), first.host)

    assert awake(moves) == {2: True, 3: False}
    assert "qwen: qwen@2 stays awake from now on" in moves.lines
    (staying,) = moves.staying
    assert (staying.old, staying.differs, staying.restarts) == (second.document, True, False)

    cluster.head_files[drained_file("demo")] = to_json(DrainedHosts([first.host])).encode()
    again = served(declared(cluster, moves))
    assert not any(each.differs for each in again.replicas)
    assert again.members == moves.members


def test_fewer_replicas_leave_one_awake_where_the_first_does_not_serve() -> None:
    cluster = Cluster("nvidia")
    plan = planned(cluster, "1..2")
    second = plan.replicas[1]
    serving = ServiceState("qwen@2", "ready", 0.0)
    reported = NodeState(second.host, "worker", 0.0, "0.1", "up", 0.0, 0, services=[serving])

    moves = scaling(cluster.survey(plan, gpu2=reported), "qwen", 1)

    assert [each.number for each in moves.leaving] == [1]
    assert awake(moves) == {2: True}
    assert moves.members.least == 1

    # Its number is free again, so the next one is the first once more
    more = scaling(declared(cluster, moves), "qwen", 2)
    assert awake(more) == {1: True, 2: False}
    assert more.awake == ["qwen@2 may sleep from now on"]


def test_a_move_without_replicas_that_change_their_part_changes_no_document() -> None:
    cluster = with_two_gpus_each(512 * GIB)
    moves = scaling(cluster.survey(planned(cluster, "1..2")), "qwen", 3)
    assert awake(moves) == {1: True, 2: False, 3: False}
    assert not any(each.differs for each in moves.staying)
    assert not moves.awake


def test_those_that_stay_awake_take_no_memory_of_hosts() -> None:
    first, second = (each.document for each in planned(Cluster("nvidia"), "1..2").replicas)
    assert first.parked_gib == second.parked_gib > 0
    found = parked([first, second])
    assert found[first.node_ips[0]] == 0
    assert found[second.node_ips[0]] > 0
    require_one_replica(first, "qwen", 4)
    with pytest.raises(UsageError):
        require_one_replica(replace(first, least=-1), "qwen", 4)


def with_two_gpus_each(memory: int) -> Cluster:
    """Two hosts with so many bytes of memory."""
    cluster = Cluster("nvidia")
    two = {"gpus": (Gpu(), Gpu())}
    hosts = tuple(host.model_copy(update=two) for host in cluster.inventory.hosts)
    cluster.inventory = cluster.inventory.model_copy(update={"hosts": hosts})
    nodes = [replace(node, gpus=2) for node in cluster.state.nodes]
    cluster.state = replace(cluster.state, nodes=nodes)
    for name, probe in cluster.answers.items():
        facts = replace(probe.facts, memory=memory, gpus=gpus(2))
        cluster.answers[name] = replace(probe, facts=facts)
    return cluster


def test_all_that_may_sleep_on_a_host_must_fit_into_its_memory_together() -> None:
    # Three quarters of a host's memory may be used, and each rank may pin twice its weights
    one = planned(Cluster("nvidia"), "0..2").document.parked_gib * 2 / 0.75
    assert len(planned(with_two_gpus_each(ceil(2.1 * one * GIB)), "0..4").replicas) == 4
    assert len(planned(with_two_gpus_each(ceil(1.1 * one * GIB)), "2..4").replicas) == 4
    with pytest.raises(DoesNotFit, match="GiB of the host's memory while it sleeps") as refused:
        planned(with_two_gpus_each(ceil(1.1 * one * GIB)), "1..4")
    assert "a number in place of the range" in str(refused.value.hint)


def test_more_replicas_and_moved_ones_must_fit_into_the_memory_of_hosts_too() -> None:
    one = planned(Cluster("nvidia"), "0..2").document.parked_gib * 2 / 0.75
    cluster = with_two_gpus_each(ceil(1.1 * one * GIB))
    survey = cluster.survey(planned(cluster, "0..2"))
    with pytest.raises(DoesNotFit, match="GiB of the host's memory while it sleeps"):
        scaling(survey, "qwen", 4)
    with pytest.raises(DoesNotFit, match="GiB of the host's memory while it sleeps"):
        moves_from(survey, "gpu2")
    assert len(scaling(survey, "qwen", 1).leaving) == 1
