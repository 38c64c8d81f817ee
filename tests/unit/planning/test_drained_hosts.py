"""Where the replicas of a drained host go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import DoesNotFit, RequirementsNotMet, UsageError
from clusterctl.node.documents import DrainedHosts, to_json
from clusterctl.planning.moves import moves_from, require_known
from clusterctl.survey.survey import drained_file
from tests.unit.planning.test_prepared_service import Cluster


def test_a_replica_moves_to_a_free_gpu_of_another_host() -> None:
    cluster = Cluster("nvidia")
    two = cluster.prepare(tp=1, replicas="2")
    alone = replace(
        two,
        replicas=two.replicas[:1],
        members=two.members and replace(two.members, members=two.members.members[:1]),
    )
    (moves,) = moves_from(cluster.survey(alone), "gpu1")

    assert [document.name for document in moves.leaving] == ["qwen"]
    (moved,) = moves.new
    assert moved.document.name == "qwen@2"
    assert moved.document.node_ips == ["10.0.0.2"]
    assert moved.document.argv[moved.document.argv.index("--host") + 1] == "10.0.0.2"
    assert moved.document.fingerprint != alone.document.fingerprint
    assert [(member.replica, member.host) for member in moves.members.members] == [(2, "gpu2")]
    assert not moves.ends


def test_where_no_gpu_is_free_the_replica_stops_and_the_plan_says_so() -> None:
    cluster = Cluster("nvidia")
    (moves,) = moves_from(cluster.survey(cluster.prepare(tp=1, replicas="2")), "gpu2")

    assert moves.new == ()
    assert [each.document.name for each in moves.staying] == ["qwen"]
    assert moves.lines == [
        "qwen: stop qwen@2, after the running requests",
        "qwen: 1 replica will be left: no other host has free GPUs for 1 of them",
    ]


def test_a_service_without_a_list_of_replicas_is_served_again_first() -> None:
    cluster = Cluster("nvidia")
    with pytest.raises(RequirementsNotMet, match="qwen is not behind the gateway") as caught:
        moves_from(cluster.survey(cluster.prepare(tp=1).document), "gpu2")
    assert (
        caught.value.hint == "clusterctl serve /data/models/qwen --name qwen, with the same flags"
    )


def test_a_host_without_replicas_has_nothing_to_move() -> None:
    cluster = Cluster("nvidia")
    assert moves_from(cluster.survey(), "gpu2") == []
    with pytest.raises(UsageError, match="no host named gpu9"):
        require_known(cluster.survey(), "gpu9")


def test_a_drained_host_gets_no_replicas() -> None:
    cluster = Cluster("nvidia")
    cluster.head_files[drained_file("demo")] = to_json(DrainedHosts(["gpu2"])).encode()
    with pytest.raises(DoesNotFit, match="2 replicas of qwen need 1 GPU each, and 1 of them fits"):
        cluster.prepare(tp=1, replicas="2")
