"""What `stop` shows: each replica that ends, as a change that stops a service."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from clusterctl.commands.stop import changes_of, left_running
from clusterctl.node.documents import NodeState
from clusterctl.operations import stopping
from clusterctl.reporting.console import Progress
from clusterctl.reporting.plan_view import plan_document, plan_lines
from clusterctl.serving import declaration
from tests.fakes.transport import FakeTransport
from tests.unit.planning.test_prepared_service import Cluster


def test_a_service_ends_and_the_plan_marks_that() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1).document)

    plan = changes_of(survey, "qwen", survey.service("qwen").replicas)

    assert plan_lines(plan) == [
        "1 change on 1 host:",
        "  Stop qwen",
        "    gpu1  !  let requests of qwen finish for 60 s, end vLLM",
    ]
    assert plan_document(plan)["changes"][0]["disruptive"] is True


def test_all_replicas_end_and_leave_the_gateway() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1, replicas="2"))

    plan = changes_of(survey, "qwen", survey.service("qwen").replicas)

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
    assert "is not in the inventory: its replica of qwen keeps running" in note.text


class Lock:
    """Writes nothing."""

    def replace(self, path: str, data: bytes | None, **_: object) -> None:
        assert data is None, path


def test_its_steps_are_under_one_line_with_the_name_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1, replicas="2"))
    hosts = {host.name: FakeTransport(host) for host in cluster.inventory.hosts}
    survey = replace(survey, transports=hosts)
    ended = NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 1)
    monkeypatch.setattr(declaration, "read_reported_state", lambda *_: ended)
    screen = io.StringIO()

    replicas = survey.service("qwen").replicas
    stopping.end(survey, "qwen", replicas, Lock(), Progress(screen))  # type: ignore[arg-type]

    first, *lines = screen.getvalue().splitlines()
    assert first == "Stop qwen"
    assert [line for line in lines if not line.startswith("  ")] == []
    for each in replicas:
        assert any(f"let running requests of {each.name} finish" in line for line in lines)
    assert "take qwen out of the gateway" in lines[-1]
