"""`batch`: the priority of its requests, by what the head knows of the service."""

from __future__ import annotations

import pytest

from clusterctl.commands.batch import priority_of
from clusterctl.node.documents import to_json
from clusterctl.node.files import NodePaths
from clusterctl.planning.moves import moves_from
from clusterctl.serving.batch import AFTER_OTHERS
from clusterctl.units import GIB
from tests.unit.planning.test_scaled_services import with_two_gpus_each


@pytest.mark.parametrize(("policy", "priority"), [("priority", AFTER_OTHERS), ("fcfs", 0)])
def test_others_come_first_where_the_service_schedules_by_priority(
    policy: str, priority: int
) -> None:
    cluster = with_two_gpus_each(512 * GIB)
    plan = cluster.prepare("--scheduling-policy", policy, tp=1, replicas="2")
    assert priority_of(cluster.survey(plan), "qwen") == priority

    # Replica 1, whose document has the service's own name, is gone once it has moved
    (moves,) = moves_from(cluster.survey(plan), plan.replicas[0].host)
    listed = to_json(moves.members).encode()
    cluster.head_files[f"{NodePaths('demo').members}/qwen.json"] = listed
    survey = cluster.survey(*(each.document for each in (*moves.staying, *moves.new)))
    assert [each.replica for each in moves.members.members] == [2, 3]
    assert priority_of(survey, "qwen") == priority

    # Only the head is asked
    del cluster.answers["gpu2"]
    alone = cluster.survey(*(each.document for each in moves.new))
    assert priority_of(alone, "qwen") == priority
