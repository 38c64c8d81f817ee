"""`serve --on`: which hosts a service may use, and what it keeps of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.node.documents import to_json
from clusterctl.planning.moves import moves_from
from tests.fakes.transport import starts
from tests.unit.planning.test_prepared_service import Cluster, flag


def test_a_service_starts_on_the_hosts_that_are_named_and_needs_its_model_only_there() -> None:
    cluster = Cluster("nvidia")
    cluster.transports["gpu1"].on(starts("sh", "-c"), stdout="end\n")
    plan = cluster.prepare(tp=1, on="gpu2")

    assert plan.document.node_ips == ["10.0.0.2"]
    assert (plan.members.on, [each.host for each in plan.members.members]) == ("gpu2", ["gpu2"])


def test_serving_again_keeps_the_hosts_until_others_are_named() -> None:
    cluster = Cluster("nvidia")
    first = cluster.prepare(tp=1, on="gpu2")
    again = cluster.prepare(tp=1, declared=(first,))
    assert (again.members, again.document) == (first.members, first.document)

    moved = cluster.prepare(tp=1, on="gpu1", declared=(first,))
    assert moved.document.node_ips == ["10.0.0.1"]
    assert [document.name for document in moved.surplus] == ["qwen"]

    free = cluster.prepare(tp=1, on="*", declared=(first,))
    assert (free.members.on, free.document) == ("", first.document)


def test_what_does_not_fit_there_is_refused_with_what_would() -> None:
    with pytest.raises(DoesNotFit, match=r"1 free \(gpu2 1\)") as caught:
        Cluster("nvidia").prepare(tp=2, on="gpu2")
    assert caught.value.hint == "--tp 1 works"
    assert caught.value.detail == "--on gpu2 leaves out 1 host"
    with pytest.raises(DoesNotFit, match="2 replicas of qwen need 1 GPU each, and 1 of them fits"):
        Cluster("nvidia").prepare(tp=1, replicas="2", on="gpu2")


def test_a_command_that_would_fit_names_the_hosts_too() -> None:
    with pytest.raises(DoesNotFit) as caught:
        Cluster("nvidia").prepare("--max-model-len", "64K", tp=1, on="gpu[2]")
    assert "--on 'gpu[2]' -- --max-model-len 32768" in str(caught.value.hint)


def test_a_misspelt_host_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--on gpo2 matches no host; did you mean gpu2\?"):
        Cluster("nvidia").prepare(tp=1, on="gpo2")


def test_data_parallel_ranks_are_kept_on_hosts_too() -> None:
    plan = Cluster("nvidia").prepare("--data-parallel-size", "2", tp=1, on="gpu1,gpu2")
    assert plan.document.node_ips == ["10.0.0.1", "10.0.0.2"]
    assert (plan.document.gpus, len(plan.members.members)) == (2, 1)
    assert flag(plan.document, "--data-parallel-size-local") == "1"
    with pytest.raises(DoesNotFit, match=r"--tp 1 --dp 2 needs 2|--dp 2 needs 2"):
        Cluster("nvidia").prepare("--data-parallel-size", "2", tp=1, on="gpu2")


def test_a_drained_host_gives_its_replica_to_none_that_the_service_may_not_use() -> None:
    cluster = Cluster("nvidia")
    plan = cluster.prepare(tp=1, on="gpu2")
    (moves,) = moves_from(cluster.survey(plan), "gpu2")
    assert moves.new == ()
    assert moves.members.on == "gpu2"
    assert "no other host of --on gpu2 has free GPUs" in moves.lines[-1]


def without(cluster: Cluster, name: str) -> None:
    hosts = tuple(host for host in cluster.inventory.hosts if host.name != name)
    cluster.inventory = cluster.inventory.model_copy(update={"hosts": hosts})
    nodes = [node for node in cluster.state.nodes if node.name != name]
    cluster.state = replace(cluster.state, nodes=nodes)
    cluster.answers.pop(name)
    cluster.transports.pop(name)


@pytest.mark.parametrize(("on", "left"), [("gpu1,gpu2", "gpu1"), ("!gpu2", "")])
def test_a_choice_outlives_hosts_that_leave_the_inventory(on: str, left: str) -> None:
    cluster = Cluster("nvidia")
    first = cluster.prepare(tp=1, on=on)
    assert first.layout.hosts == ("gpu1",)
    without(cluster, "gpu2")
    again = cluster.prepare(tp=1, declared=(first,))
    assert (again.members.on, again.layout.hosts) == (left, ("gpu1",))
    (moves,) = moves_from(cluster.survey(first), "gpu1")
    assert moves.members.on == left


def test_a_choice_without_any_host_left_says_so_until_another_is_made() -> None:
    cluster = Cluster("nvidia")
    first = cluster.prepare(tp=1, on="gpu2")
    without(cluster, "gpu2")
    cluster.head_files["/etc/clusterctl/demo/members/qwen.json"] = to_json(first.members).encode()
    with pytest.raises(UsageError, match="none of these hosts are in") as caught:
        cluster.prepare(tp=1)
    assert caught.value.hint == "serve it with `--name qwen --on HOSTS`, or on all with `--on '*'`"
    assert cluster.prepare(tp=1, on="*").layout.hosts == ("gpu1",)


def test_a_service_gets_data_parallel_ranks_only_after_a_stop() -> None:
    cluster = Cluster("nvidia")
    single = cluster.prepare(tp=1)
    with pytest.raises(UsageError, match="qwen runs with TP 1, PP 1: replicas change") as caught:
        cluster.prepare("--data-parallel-size", "2", tp=1, declared=(single,))
    assert caught.value.hint == "clusterctl stop qwen, then serve again"
