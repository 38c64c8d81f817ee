"""Ray's tables, as ray-watch turns them into documents; rows as Ray 2.60 gives them."""

from __future__ import annotations

from clusterctl.node.documents import RayNode, ServiceDocument
from clusterctl.node.probes import Versions, version_labels
from clusterctl.node.ranks import ranks
from clusterctl.node.ray_watch import UNNAMED, Snapshot, WorkerActor, ray_nodes, worker_actors
from clusterctl.node.service import RayConditions, who_left, why_wait

ROW = {
    "NodeID": "0ff7", "Alive": True, "NodeManagerAddress": "10.0.0.1", "NodeName": "a",
    "DeathReasonMessage": "",
    "Resources": {"CPU": 8.0, "GPU": 2.0, "node:10.0.0.1": 1.0, "node:__internal_head__": 1.0},
    "Labels": {"ray-version": "2.60.0", "python-version": "3.12.1", "ray.io/node-id": "0ff7"},
}  # fmt: skip


def test_a_living_node() -> None:
    assert ray_nodes([ROW], {"0ff7": {"CPU": 8.0, "GPU": 0.5}}) == [
        RayNode("0ff7", "10.0.0.1", "a", True, True, 2, 1.5, 8, "2.60.0", "3.12.1")
    ]


def test_a_node_with_all_gpus_in_use_has_no_gpu_entry_left() -> None:
    assert ray_nodes([ROW], {"0ff7": {"CPU": 8.0}})[0].gpus_used == 2


def test_a_dead_node_has_no_resources() -> None:
    dead = {**ROW, "Alive": False, "Resources": {}, "DeathReasonMessage": "no heartbeats"}
    node = ray_nodes([dead], {})[0]
    assert (node.alive, node.gpus, node.death_reason) == (False, 0, "no heartbeats")


def actor(name: str, state: str = "ALIVE", kind: str = "RayWorkerProc") -> dict[str, object]:
    place = {"NodeID": "0ff7", "IPAddress": "10.0.0.1", "Port": 1}
    return {
        "ActorID": "a1", "ActorClassName": kind, "Name": name, "State": state, "JobID": "01",
        "Address": place, "Pid": 7,
    }  # fmt: skip


def test_vllm_workers_among_the_actors() -> None:
    table = {
        "x": actor("vllm_Worker_i_TP0"),
        "y": actor("other"),
        "z": actor("vllm_Worker_j", "DEAD"),
        "older": actor("", kind="RayWorkerWrapper"),
        "own": actor("", kind="Trainer"),
    }
    found = worker_actors(table, [{"JobID": "01", "DriverPid": 99}])
    assert [one.name for one in found] == ["vllm_Worker_i_TP0", f"{UNNAMED}a1"]
    assert found[0] == WorkerActor("vllm_Worker_i_TP0", "0ff7", "10.0.0.1", 7, 99)


def test_ranks_count_tensor_parallel_first() -> None:
    nodes = [RayNode("n1", "10.0.0.1", "a", True, True, 2, 0, 8)]
    names = ["vllm_Worker_ab_TP1_PP1", "vllm_Worker_ab_TP0_PP1", "vllm_Worker_ab_TP1_PP0"]
    workers = [WorkerActor(name, "n1", "10.0.0.1", 5, 1) for name in names]
    found = ranks(workers, nodes, tensor_parallel=2)
    assert [(rank.rank, rank.tp, rank.pp) for rank in found] == [(1, 1, 0), (2, 0, 1), (3, 1, 1)]


def test_ranks_without_names_count_from_their_drivers_host() -> None:
    """RayDistributedExecutor's: then come hosts with fewer ranks, and smaller addresses."""
    places = ["10.0.0.3", "10.0.0.2", "10.0.0.4", "10.0.0.3", "10.0.0.1", "10.0.0.2"]
    workers = [
        WorkerActor(f"{UNNAMED}{number}", "n", node_ip, number, 1, "10.0.0.3")
        for number, node_ip in enumerate(places)
    ]
    found = ranks(workers, [], tensor_parallel=2, pipeline_parallel=3)
    assert [(rank.rank, rank.tp, rank.pp, rank.node_ip) for rank in found] == [
        (0, 0, 0, "10.0.0.3"), (1, 1, 0, "10.0.0.3"), (2, 0, 1, "10.0.0.1"),
        (3, 1, 1, "10.0.0.4"), (4, 0, 2, "10.0.0.2"), (5, 1, 2, "10.0.0.2"),
    ]  # fmt: skip


def test_ranks_of_replicas_count_on() -> None:
    """Names as vLLM 0.25 gave them with --data-parallel-size on two hosts."""
    names = [f"vllm_Worker_ab12c_dp{dp}{rest}" for dp in (0, 1) for rest in ("_TP0", "_TP1")]
    workers = [WorkerActor(name, "n1", "10.0.0.1", 5, 1) for name in names]
    assert [rank.rank for rank in ranks(workers, [], tensor_parallel=2)] == [0, 1, 2, 3]
    alone = [WorkerActor(f"vllm_Worker_ab12c_dp{dp}", "n1", "10.0.0.1", 5, 1) for dp in (0, 1)]
    assert [rank.rank for rank in ranks(alone, [], 1)] == [0, 1]
    staged = [WorkerActor("vllm_Worker_a_dp1_TP1_PP1", "n1", "10.0.0.1", 5, 1)]
    assert ranks(staged, [], tensor_parallel=2, pipeline_parallel=2)[0].rank == 7


def test_pipeline_parallel_alone_and_a_single_rank() -> None:
    pipeline = [WorkerActor("vllm_Worker_TPU_PP1", "n1", "10.0.0.1", 5, 1)]
    assert ranks(pipeline, [], 1)[0].rank == 1
    assert ranks([WorkerActor("vllm_Worker_ab", "n1", "10.0.0.1", 5, 1)], [], 1)[0].rank == 0


def test_why_a_service_waits() -> None:
    service = ServiceDocument("s", "m", "m", [], {}, "", 1, 1, 1, 1, "f")
    assert (
        why_wait(service, RayConditions([], None, ray_up=False, env={}), 0)
        == "for Ray on this host"
    )
    old = RayConditions([], Snapshot(10.0), ray_up=True, env={}, taken=10.0)
    assert why_wait(service, old, not_before=11.0) == "for Ray to report its nodes"


def test_a_node_that_was_dead_before_is_not_missed() -> None:
    dead = RayNode("n0", "10.0.0.1", "a", False, False, 0, 0, 0)
    assert who_left(frozenset({"n1"}), Snapshot(1.0, [dead])) == ""
    assert who_left(frozenset({"n0"}), Snapshot(1.0, [dead])) == "a left Ray: no reason given"


def test_versions_become_labels_where_ray_takes_them() -> None:
    known = Versions(ray="2.60.0", python="3.12.1+x", vllm="")
    assert version_labels(known) == ["--labels=ray-version=2.60.0,python-version=3.12.1-x"]
    assert version_labels(Versions("2.40.0", "3.12.1", "")) == []
    assert version_labels(Versions("", "3.12.1", "")) == []
