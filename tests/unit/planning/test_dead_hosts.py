"""Services are planned without hosts that are dead, and their replicas go elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import AuthenticationRejected, ClusterctlError, DoesNotFit, Unreachable
from clusterctl.models.name import resolve
from clusterctl.planning.moves import moves_from, require_known
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.request import Options, read_request
from clusterctl.survey.survey import Survey
from clusterctl.transport.fanout import Failed
from tests.unit.planning.test_prepared_service import Cluster


def surveyed(
    cluster: Cluster,
    *declared: ServicePlan,
    error: type[ClusterctlError] = Unreachable,
    alive: bool = False,
) -> Survey:
    """What hosts answer while gpu2 does not, and whether Ray has it."""
    first, second = cluster.state.nodes
    cluster.state = replace(cluster.state, nodes=[first, replace(second, alive=alive)])
    survey = cluster.survey(*declared)
    outcomes = {**survey.outcomes, "gpu2": Failed(error("no answer", host="gpu2"))}
    return replace(survey, outcomes=outcomes).without_dead()


def served(survey: Survey, replicas: str | None = None) -> ServicePlan:
    request = read_request(Options("/data/models/qwen", 1, name="qwen", replicas=replicas))
    return plan_service(survey, request, resolve(request.model, survey.inventory.models))


def numbers(plan: ServicePlan) -> list[tuple[int, str]]:
    return [(each.replica, each.host) for each in (plan.members.members if plan.members else ())]


def test_a_worker_that_neither_answers_nor_is_in_ray_is_left_out() -> None:
    survey = surveyed(Cluster("nvidia"))
    assert list(survey.left_out) == ["gpu2"]
    assert [host.name for host in survey.inventory.hosts] == ["gpu1"]
    assert survey.require_answers() is survey
    require_known(survey, "gpu2")


@pytest.mark.parametrize(("error", "alive"), [(Unreachable, True), (AuthenticationRejected, False)])
def test_one_that_may_still_serve_is_not(error: type[ClusterctlError], alive: bool) -> None:
    survey = surveyed(Cluster("nvidia"), error=error, alive=alive)
    assert survey.left_out == {}
    with pytest.raises(error):
        survey.require_answers()


def test_its_replica_waits_for_it_where_no_other_host_has_room() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(tp=1, replicas="2")
    for asked in (None, "2", "max"):
        plan = served(surveyed(cluster, pair), asked)
        assert numbers(plan) == [(1, "gpu1"), (2, "gpu2")]
        assert [each.document.name for each in plan.replicas] == ["qwen"]
        assert "no room for 1 of 2 replicas until gpu2 is back" in plan.notes
    with pytest.raises(DoesNotFit, match="3 replicas of qwen need 1 GPU each, and 1 of them fits"):
        served(surveyed(cluster, pair), "3")


def only_on_gpu2(cluster: Cluster) -> ServicePlan:
    pair = cluster.prepare(tp=1, replicas="2")
    assert pair.members
    members = replace(pair.members, members=pair.members.members[1:])
    return replace(pair, replicas=pair.replicas[1:], members=members)


def test_its_replica_starts_elsewhere_under_another_number() -> None:
    """It may start again at any time, when its host is back."""
    cluster = Cluster("nvidia")
    alone = only_on_gpu2(cluster)
    assert numbers(alone) == [(2, "gpu2")]
    assert numbers(served(surveyed(cluster, alone))) == [(1, "gpu1")]


def test_a_new_service_that_ray_would_place_gets_a_place_of_its_own() -> None:
    plan = served(surveyed(Cluster("nvidia")))
    assert plan.document.node_ips == ["10.0.0.1"], "it does not wait for the dead host"


def test_a_dead_host_is_drained_by_giving_its_replicas_up() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(tp=1, replicas="2")
    (moves,) = moves_from(surveyed(cluster, pair), "gpu2")
    assert (moves.leaving, moves.new, moves.lost) == ((), (), ("qwen@2",))
    assert [member.host for member in moves.members.members] == ["gpu1"]
    assert not moves.ends
    assert moves.lines == [
        "qwen: give up qwen@2, whose host is dead",
        "qwen: 1 replica will be left: no other host has free GPUs for 1 of them",
    ]


def test_a_service_with_all_replicas_on_a_dead_host_ends_with_it() -> None:
    cluster = Cluster("nvidia")
    alone = only_on_gpu2(cluster)
    (moves,) = moves_from(surveyed(cluster, alone), "gpu2")
    assert moves.ends
    assert moves.members.members == []
