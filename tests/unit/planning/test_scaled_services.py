"""Services whose replicas sleep while they are not needed: what is declared, and the memory of
hosts."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.inventory.model import Gpu
from clusterctl.planning.service_plan import ServicePlan
from clusterctl.planning.sleepers import parked, require_one_replica
from clusterctl.serving.service import difference, needs_restart
from clusterctl.units import GIB
from tests.fakes.host_facts import gpus
from tests.unit.planning.test_prepared_service import Cluster


def planned(cluster: Cluster, replicas: str | None, *own: ServicePlan) -> ServicePlan:
    return cluster.prepare(tp=1, replicas=replicas, declared=own)


def test_all_replicas_have_one_command_and_the_first_never_sleeps() -> None:
    plan = planned(Cluster("nvidia"), "1..2")

    first, second = (each.document for each in plan.replicas)
    assert "--enable-sleep-mode" in first.argv
    assert not needs_restart(first, replace(second, argv=first.argv))
    assert [each.stays_awake for each in (first, second)] == [True, False]
    assert [each.idle for each in (first, second)] == [300.0, 300.0]
    assert (plan.members.least, plan.members.asked) == (1, 2)
    assert any(note.startswith("at least 1 stay awake; others are asked") for note in plan.notes)


def test_another_least_restarts_nothing_and_is_said() -> None:
    cluster = Cluster("nvidia")
    one, none = planned(cluster, "1..2"), planned(cluster, "0..2")
    assert difference(one.document, none.document) == ["awake: at least 1 → at least 0"]
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
    assert "awake: no longer given (was at least 1)" in difference(plan.document, fixed.document)


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
    assert "give a number in place of the range" in str(refused.value.hint)
