"""`fit`, `serve` and moves ask the planner the same question, on the same hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.commands.fit import fit_on
from clusterctl.containers.driver import ContainerDriver
from clusterctl.engine.events import Event, Note
from clusterctl.errors import Problems, RequirementsNotMet, Unreachable
from clusterctl.models.name import resolve
from clusterctl.node.documents import to_json
from clusterctl.operations.moving import drain_host, move
from clusterctl.planning.fit_request import FitArguments
from clusterctl.planning.moves import moves_from
from clusterctl.planning.replicas import as_if_declared
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.declaration import members_file
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import Failed
from clusterctl.transport.lock import ClusterLock
from tests.fakes.catalogue import config_of
from tests.fakes.container_engine import FakeDriver, FakeEngine
from tests.fakes.transport import starts
from tests.unit.planning.test_fit_and_serve_agree import MODEL, Cluster
from tests.unit.planning.test_prepared_service import Cluster as Pair

SYMMETRIC_MEMORY = "VLLM_ALLREDUCE_USE_SYMM_MEM"
H200 = "NVIDIA H200"


def served(cluster: Cluster, *flags: str, tp: int = 2, replicas: str = "1") -> Survey:
    """The survey once the model is served with these replicas."""
    options = Options(MODEL, tp, name="qwen", replicas=replicas)
    request = read_request(options, (), parse_arguments(flags))
    plan = plan_service(cluster.survey, request, resolve(MODEL, cluster.inventory.models))
    return declared(cluster.survey, plan)


def declared(survey: Survey, plan: ServicePlan) -> Survey:
    assert plan.members
    files = {members_file("demo", plan.service): to_json(plan.members).encode()}
    return as_if_declared(survey, plan.replicas).with_files({"gpu1": files})


def three_hosts(*gpus: int) -> Cluster:
    config = config_of("Qwen/Qwen2.5-1.5B-Instruct")
    return Cluster(config, tuple((H200, count) for count in gpus), 100_000)


def test_fit_plans_without_a_dead_worker_as_serve_does() -> None:
    cluster = Pair("nvidia")
    first, second = cluster.state.nodes
    cluster.state = replace(cluster.state, nodes=[first, replace(second, alive=False)])
    survey = cluster.survey()
    dark = Failed(Unreachable("no answer", host="gpu2"))
    survey = replace(survey, outcomes={**survey.outcomes, "gpu2": dark})

    report = fit_on(survey, FitArguments("/data/models/qwen"))

    assert {rank.host for rank in report.plan.ranks} == {"gpu1"}


def test_a_replica_that_moves_over_two_hosts_gets_what_a_start_there_needs() -> None:
    """Without the variable its ranks wait for each other for ever."""
    survey = served(three_hosts(1, 2, 1))
    (before,) = survey.service("qwen").documents
    assert SYMMETRIC_MEMORY not in before.env, "its ranks are on one host"

    (moves,) = moves_from(survey, "gpu2")

    (moved,) = moves.new
    assert moved.layout.hosts == ("gpu1", "gpu3")
    assert moved.document.env[SYMMETRIC_MEMORY] == "0"
    assert moved.document.node_ips == ["10.0.0.1", "10.0.0.3"]


def test_one_that_moves_back_into_one_host_loses_it() -> None:
    survey = served(three_hosts(1, 1, 1))
    assert survey.service("qwen").documents[0].env[SYMMETRIC_MEMORY] == "0"
    larger = served(three_hosts(1, 1, 2))
    outcomes = {**survey.outcomes, "gpu3": larger.outcomes["gpu3"]}
    inventory = larger.inventory
    state = three_hosts(1, 1, 2).survey.head_file("/run/clusterctl/demo/state.json")
    survey = replace(survey, outcomes=outcomes, inventory=inventory)
    survey = survey.with_files({"gpu1": {"/run/clusterctl/demo/state.json": state}})

    (moves,) = moves_from(survey, "gpu2")

    (moved,) = moves.new
    assert moved.layout.hosts == ("gpu3",)
    assert SYMMETRIC_MEMORY not in moved.document.env


def test_a_replica_keeps_its_flags_where_it_goes() -> None:
    survey = served(three_hosts(1, 1, 1), "--max-model-len", "4096", tp=1, replicas="2")
    (moves,) = moves_from(survey, "gpu2")
    (before,) = moves.leaving
    (moved,) = moves.new
    assert moved.host == "gpu3"
    changed = set(moved.document.argv) - set(before.document.argv)
    assert changed <= {moved.document.host, str(moved.document.port)}
    assert "4096" in moved.document.argv


def test_no_replica_moves_to_a_gpu_that_it_does_not_fit_on() -> None:
    config = config_of("Qwen/Qwen3-8B")
    gpus = ((H200, 1), (H200, 1), ("Tesla T4", 1))
    survey = served(Cluster(config, gpus, 100_000), tp=1, replicas="2")
    (moves,) = moves_from(survey, "gpu2")
    assert moves.new == ()
    assert moves.lines[-1].endswith("no other host has free GPUs for 1 of them")


def test_a_host_without_the_model_is_named_before_anything_moves() -> None:
    cluster = three_hosts(1, 1, 1)
    survey = served(cluster, tp=1, replicas="2")
    cluster.transports["gpu3"].on(starts("sh", "-c"), stdout="")
    with pytest.raises(RequirementsNotMet, match="the model is missing") as caught:
        moves_from(survey, "gpu2")
    assert caught.value.host == "gpu3"
    assert caught.value.hint == "clusterctl model push some --from host:gpu1"


def test_the_links_of_a_replica_that_moves_over_two_hosts_are_proven_first() -> None:
    cluster = three_hosts(1, 2, 1)
    survey = served(cluster)
    moves = [replace(each, location=None) for each in moves_from(survey, "gpu2")]
    head = cluster.transports["gpu1"].on(starts("cat"), stdout="key\n")

    def without_containers(host: Transport) -> ContainerDriver:
        return FakeDriver(host.host.name, FakeEngine(), lambda: None)

    lock = ClusterLock(head, "demo", "drain")
    with pytest.raises(Problems) as caught:
        move(survey, moves, lock, lambda _: None, without_containers)
    assert [error.host for error in caught.value.errors] == ["gpu1", "gpu3"]
    assert all("its fabric cannot be tested" in str(error) for error in caught.value.errors)
    assert not any("clusterctl-write" in call.argv for call in head.calls)


def test_a_host_whose_replicas_cannot_leave_is_not_drained() -> None:
    """It would keep them, and get no others."""
    cluster = three_hosts(1, 2, 1)
    survey = served(cluster)
    moves = [replace(each, location=None) for each in moves_from(survey, "gpu2")]
    head = cluster.transports["gpu1"].on(starts("cat"), stdout="key\n")
    head.on(lambda argv: "clusterctl-lock" in argv, stdout="held\n")
    head.on(lambda argv: "clusterctl-write" in argv)
    events: list[Event] = []

    def without_containers(host: Transport) -> ContainerDriver:
        return FakeDriver(host.host.name, FakeEngine(), lambda: None)

    with ClusterLock(head, "demo", "drain") as lock, pytest.raises(Problems):
        drain_host(survey, "gpu2", moves, lock, events.append, without_containers)

    written = [call for call in head.calls if "clusterctl-write" in call.argv]
    assert [b"gpu2" in call.stdin for call in written] == [True, False]
    assert written[-1].argv[-1] == "gone"
    notes = [event.text for event in events if isinstance(event, Note)]
    assert notes == ["can have replicas again: it was not drained"]
