"""Another number of replicas changes nothing else: what stays keeps its flags and its process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.commands.scale import ScalePlan
from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.node.documents import ServiceState
from clusterctl.operations.serving import changes_of
from clusterctl.planning.moves import scaling
from tests.unit.planning.test_dead_hosts import surveyed
from tests.unit.planning.test_prepared_service import Cluster, flag

FLAGS = ("--max-model-len", "1024")


def test_a_new_replica_has_the_flags_of_those_that_stay() -> None:
    cluster = Cluster("nvidia")
    one = cluster.prepare(*FLAGS, tp=1, replicas="1")
    survey = cluster.survey(one)
    moves = scaling(survey, "qwen", 2)

    assert [each.restarts or each.differs for each in moves.staying] == [False]
    (new,) = moves.new
    assert (new.name, new.host, flag(new.document, "--max-model-len")) == ("qwen@2", "gpu2", "1024")
    assert (moves.members.asked, [each.replica for each in moves.members.members]) == (2, [1, 2])
    assert ScalePlan(survey, moves).lines == ["start qwen@2 on gpu2"]

    assert one.members
    both = replace(one, replicas=(*one.replicas, new), members=moves.members)
    again = cluster.survey(both)
    assert ScalePlan(again, scaling(again, "qwen", 2)).lines == []


def test_fewer_end_those_that_do_not_serve_and_restart_none() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(*FLAGS, tp=1, replicas="2")
    survey = cluster.survey(pair)
    lines = ScalePlan(survey, scaling(survey, "qwen", 1)).lines
    assert lines == ["stop qwen@2 on gpu2, after its running requests"]

    other = replace(cluster.state, host="gpu2", services=[ServiceState("qwen@2", "ready", 0.0)])
    survey = cluster.survey(pair, gpu2=other)
    moves = scaling(survey, "qwen", 1)
    assert [each.name for each in moves.leaving] == ["qwen"]
    assert [(each.name, each.differs) for each in moves.staying] == [("qwen@2", False)]


def test_what_does_not_fit_is_said_with_what_would() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1, replicas="2"))
    with pytest.raises(DoesNotFit, match="3 replicas of qwen need 1 GPU each, and 2") as caught:
        scaling(survey, "qwen", 3)
    assert caught.value.hint == "clusterctl scale qwen 2"
    with pytest.raises(UsageError, match="no service named other; services: qwen"):
        scaling(survey, "other", 1)


def test_a_replica_of_a_dead_host_counts_until_it_is_given_up() -> None:
    cluster = Cluster("nvidia")
    survey = surveyed(cluster, cluster.prepare(tp=1, replicas="2"))
    kept = scaling(survey, "qwen", 2)
    assert ([each.replica for each in kept.members.members], kept.new) == ([1, 2], ())
    assert ScalePlan(survey, scaling(survey, "qwen", 1)).lines == [
        "give up qwen@2, whose host is dead"
    ]


def test_serving_with_another_number_says_which_flags_it_drops() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(*FLAGS, tp=1, replicas="2")
    fewer = cluster.prepare(tp=1, replicas="1", declared=(pair,))
    assert changes_of(cluster.survey(pair), fewer).drops == ("--max-model-len",)
    more = cluster.prepare(tp=1, replicas="2", declared=(pair,))
    changes = changes_of(cluster.survey(pair), more)
    assert (changes.restarts, changes.drops) == (False, ("--max-model-len",)), "also while rolling"

    same = cluster.prepare(*FLAGS, tp=1, replicas="2", declared=(pair,))
    assert changes_of(cluster.survey(pair), same).drops == ()
