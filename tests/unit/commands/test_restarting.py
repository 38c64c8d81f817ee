"""`restart` says what users notice, before it does anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.node.documents import ServiceState
from clusterctl.operations.restarting import plan_restart, prepare_again, restarted
from tests.fakes.transport import starts
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


def test_what_could_not_start_again_is_not_stopped() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(tp=1, replicas="2")
    cluster.transports["gpu2"].on(starts("sh", "-c"), stdout="")
    survey = cluster.survey(pair)
    plan = plan_restart(survey, "qwen@2")
    again = [restarted(survey, replica) for replica in plan.replicas]

    with pytest.raises(RequirementsNotMet, match="the model is missing") as caught:
        prepare_again(survey, plan.replicas, again, lambda _: None)

    assert caught.value.host == "gpu2"
    assert "model push qwen --from host:gpu1" in str(caught.value.hint)
