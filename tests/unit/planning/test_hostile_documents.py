"""What is moved to another host comes from what a command wrote, whatever a container reports and
whatever the worker's own file says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.node.documents import (
    DELETED,
    ServiceDocument,
    UnreadableDocument,
    declared_dir,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.planning.moves import moves_from
from clusterctl.planning.service_plan import ServicePlan
from clusterctl.survey.survey import Survey
from tests.unit.planning.test_prepared_service import Cluster

EVIL = "/etc/clusterctl/demo/files/../../../../var/lib/clusterctl/caches/demo/d/job"


def one_replica(cluster: Cluster, *, on: str) -> ServicePlan:
    """A service whose only replica is on a host."""
    two = cluster.prepare(tp=1, replicas="2")
    assert two.members
    kept = [each for each in two.members.members if each.host == on]
    planned = tuple(each for each in two.replicas if each.host == on)
    return replace(two, replicas=planned, members=replace(two.members, members=kept))


def with_files(survey: Survey, host: str, document: ServiceDocument) -> Survey:
    path = f"{NodePaths('demo').services}/{document.name}.json"
    return survey.with_files({host: {path: to_json(document).encode()}})


def test_a_document_that_only_a_container_says_was_deleted_is_moved_nowhere() -> None:
    cluster = Cluster("nvidia")
    plan = one_replica(cluster, on="gpu2")
    (honest,) = moves_from(cluster.survey(plan), "gpu2")
    argv = [*plan.document.argv, "--chat-template", EVIL]
    for name, replica in (("qwen@9", -1), ("qwen@9", 9), ("other", 1), ("qwen", 1)):
        forged = replace(plan.document, name=name, replica=replica, argv=argv)
        claim = UnreadableDocument(f"services/{name}.json", DELETED, to_json(forged))
        cluster.state = replace(cluster.state, unreadable=[claim])
        survey = cluster.survey(plan)
        assert set(survey.replicas) == {plan.document.name}
        assert moves_from(survey, "gpu2") == [honest]


def test_a_replica_that_no_list_of_the_heads_names_becomes_no_member() -> None:
    cluster = Cluster("nvidia")
    plan = one_replica(cluster, on="gpu1")
    stranger = replace(
        plan.document, name="qwen@7", replica=7, host="10.0.0.2", node_ips=["10.0.0.2"], port=9
    )
    (moves,) = moves_from(with_files(cluster.survey(plan), "gpu2", stranger), "gpu1")
    assert [each.name for each in moves.leaving] == [plan.document.name]
    assert 7 not in {each.replica for each in moves.members.members}
    assert 9 not in {each.port for each in moves.members.members}


def test_what_moves_is_what_a_command_wrote_not_what_its_host_has_now() -> None:
    cluster = Cluster("nvidia")
    plan = one_replica(cluster, on="gpu2")
    changed = replace(
        plan.document,
        argv=[*plan.document.argv, "--chat-template", EVIL],
        env={**plan.document.env, "LD_PRELOAD": "/data/models/evil.so"},
    )
    (honest,) = moves_from(cluster.survey(plan), "gpu2")
    (moves,) = moves_from(with_files(cluster.survey(plan), "gpu2", changed), "gpu2")
    assert [each.document for each in moves.new] == [each.document for each in honest.new]
    assert EVIL not in moves.new[0].document.argv


def test_without_a_copy_nothing_is_moved() -> None:
    """As an earlier version left it; bootstrap makes the copies."""
    cluster = Cluster("nvidia")
    plan = one_replica(cluster, on="gpu2")
    path = f"{declared_dir('demo')}/services/{plan.document.name}.json"
    survey = cluster.survey(plan).with_files({"gpu1": {path: None}})
    with pytest.raises(RequirementsNotMet, match="no copy of services/qwen"):
        moves_from(survey, "gpu2")
    assert set(survey.not_copied) == {f"services/{plan.document.name}.json", "members/qwen.json"}
