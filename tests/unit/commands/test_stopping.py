"""What `stop --dry-run` shows: each replica that would end, as a change that stops a service."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.commands.stop import changes_of, left_running
from clusterctl.reporting.plan_view import plan_document, plan_lines
from tests.unit.planning.test_prepared_service import Cluster


def test_a_service_ends_and_the_plan_marks_that() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1).document)

    plan = changes_of(survey, "qwen", survey.replicas("qwen"))

    assert plan_lines(plan) == [
        "1 change on 1 host:",
        "  Stop qwen",
        "    gpu1  !  let requests of qwen finish for 60 s, end vLLM",
    ]
    assert plan_document(plan)["changes"][0]["disruptive"] is True


def test_all_replicas_end_and_leave_the_gateway() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1, replicas="2"))

    plan = changes_of(survey, "qwen", survey.replicas("qwen"))

    assert [(each.host, each.step) for each in plan.changes] == [
        ("gpu1", "service"),
        ("gpu2", "service"),
        ("gpu1", "gateway"),
    ]
    assert len(plan.disruptive) == 2


def test_what_an_interrupted_stop_left_in_the_gateway_is_a_change_too() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1, replicas="2"))

    assert [each.step for each in changes_of(survey, "qwen", ()).changes] == ["gateway"]


def test_a_replica_on_a_host_that_left_the_inventory_is_named() -> None:
    cluster = Cluster("nvidia")
    two = cluster.prepare(tp=1, replicas="2")
    assert two.members
    gone = replace(two.members.members[1], host="gpu9")
    members = replace(two.members, members=[two.members.members[0], gone])

    assert left_running(cluster.survey(two), "qwen") == []
    (note,) = left_running(cluster.survey(replace(two, members=members)), "qwen")
    assert note.host == "gpu9"
    assert "is not in the inventory: its replica of qwen runs on" in note.text
