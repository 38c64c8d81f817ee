"""`restart` says what users notice, before it does anything."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.commands.restart import plan_restart
from clusterctl.node.documents import ServiceState
from tests.unit.planning.test_prepared_service import Cluster


def test_one_replica_restarts_unasked_only_while_another_serves() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(tp=1, replicas="2")
    assert plan_restart(cluster.survey(pair), "qwen@2").interrupts, "the other still loads"
    ready = ServiceState("qwen", "ready", 0.0, pair.document.fingerprint)
    cluster.state = replace(cluster.state, services=[ready])
    survey = cluster.survey(pair)
    assert not plan_restart(survey, "qwen@2").interrupts
    assert len(plan_restart(survey, "qwen").replicas) == 2
    assert not plan_restart(survey, "qwen").interrupts
