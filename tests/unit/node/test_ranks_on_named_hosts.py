"""Replicas whose ranks stay on the hosts that their documents name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node import package
from clusterctl.node.documents import IN_TURN, ExpectedNode, RayNode, ServiceDocument
from clusterctl.node.rank_placement import COPIES, NODE_IPS, PER_WORKER, own_gpus, pinned
from clusterctl.node.ray_watch import Snapshot, worker_actors
from clusterctl.node.service import RayConditions, why_wait
from clusterctl.node.vllm_plugins import plugin_env
from tests.fakes.node_bench import Bench, await_value

RAY = """\
def placement_group(bundles, strategy="PACK", name=""):
    return strategy, bundles
"""

RAY_STATE = """\
def available_resources_per_node():
    return {"a": {"node:10.0.0.1": 1.0, "GPU": 8.0}, "b": {"node:10.0.0.2": 1.0, "GPU": 8.0}}
"""

# What vLLM does: load_general_plugins, and later initialize_ray_cluster
VLLM = """\
from importlib.metadata import entry_points
for plugin in entry_points(group="vllm.general_plugins"):
    for _ in range(2):  # vLLM may load plugins several times
        plugin.load()()
import ray.util
print(ray.util.placement_group([{"GPU": 1.0}, {"GPU": 1.0}], strategy="PACK"))
print(ray.util.placement_group([{"GPU": 1.0}, {"CPU": 1.0}], name="dp_rank_0"))
from ray._private.state import available_resources_per_node
print(available_resources_per_node())
"""


def test_the_packed_program_is_a_plugin_that_pins_the_placement_group(tmp_path: Path) -> None:
    pyz = tmp_path / "node.pyz"
    pyz.write_bytes(package.build())
    (tmp_path / "ray" / "util").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").touch()
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "envs.py").write_text("environment_variables = {}")
    (tmp_path / "ray" / "util" / "__init__.py").write_text(RAY)
    (tmp_path / "ray" / "_private").mkdir()
    (tmp_path / "ray" / "_private" / "__init__.py").touch()
    (tmp_path / "ray" / "_private" / "state.py").write_text(RAY_STATE)
    env = {**os.environ, NODE_IPS: "10.0.0.2,10.0.0.2", COPIES: "2"}
    env["PYTHONPATH"] = f"{pyz}{os.pathsep}{tmp_path}"

    ran = subprocess.run(
        [sys.executable, "-S", "-c", VLLM], env=env, capture_output=True, text=True, cwd=tmp_path
    )

    bundle = {"GPU": 1.0, "node:10.0.0.2": 0.001}
    assert ran.stdout.splitlines() == [
        str(("PACK", [bundle, bundle])),
        str(("PACK", [{"GPU": 1.0}, {"CPU": 1.0}])),
        str({"b": {"node:10.0.0.2": 1.0, "GPU": 2.0}, "a": {"node:10.0.0.1": 1.0}}),
    ], ran.stderr


def test_other_placement_groups_are_left_alone() -> None:
    assert pinned([{"CPU": 1.0}], ["10.0.0.1", "10.0.0.2"]) == [{"CPU": 1.0}]


def test_copies_of_data_parallel_see_the_gpus_of_their_own_ranks_alone_and_in_their_order() -> None:
    nodes = {
        "x": {"node:10.0.0.1": 1.0, "GPU": 4.0, "CPU": 8.0},
        "y": {"node:10.0.0.2": 1.0, "node:__internal_head__": 1.0, "GPU": 1.0},
        "z": {"node:10.0.0.3": 1.0, "CPU": 8.0},
        "u": {"node:10.0.0.4": 1.0, "GPU": 2.0},
    }
    found = own_gpus(nodes, ["10.0.0.4", "10.0.0.2", "10.0.0.2", "10.0.0.3"])
    assert [(node, one.get("GPU")) for node, one in found.items()] == [
        ("u", 1.0), ("y", 1.0), ("z", None), ("x", None),
    ]  # fmt: skip
    assert found["x"] == {"node:10.0.0.1": 1.0, "CPU": 8.0}


def test_the_users_own_plugins_and_paths_are_kept() -> None:
    env = plugin_env({"PYTHONPATH": "/own", "VLLM_PLUGINS": "theirs"})
    assert env["PYTHONPATH"].endswith(f"{os.pathsep}/own")
    own = "clusterctl_compile_cache,clusterctl_rank_placement,clusterctl_stacks"
    assert env["VLLM_PLUGINS"] == f"theirs,{own}"
    assert "VLLM_PLUGINS" not in plugin_env({})


def test_a_replica_needs_only_the_hosts_of_its_ranks(bench: Bench) -> None:
    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n2", alive=False))
    bench.declare(node_ips=["10.0.0.1"], gpus=1, tensor_parallel=1)
    bench.start()

    bench.await_service("ready")

    env = bench.starts("vllm")[0]["env"]
    assert (env[NODE_IPS], env[COPIES]) == ("10.0.0.1", "1"), "Ray's GPUs are what they are"


def test_a_replica_waits_for_gpus_of_its_own_host(bench: Bench) -> None:
    bench.in_ray(bench.node("a", "n1", gpus_used=1), bench.node("b", "n2"))
    bench.declare(node_ips=["10.0.0.1"], gpus=1, tensor_parallel=1)
    bench.start()

    bench.await_service("waiting", detail="1 GPUs are needed on a, 0 are free")


@pytest.mark.parametrize(("used", "waits"), [(0.3, False), (0.6, True)])
def test_a_replica_with_a_share_needs_that_part_of_its_gpu(*, used: float, waits: bool) -> None:
    node = RayNode("n1", "10.0.0.1", "a", True, True, 1, used, 8)
    conditions = RayConditions(
        [ExpectedNode("a", "10.0.0.1", 1)], Snapshot(0.0, [node], []), True, {}
    )
    document = ServiceDocument(
        "chat", "m", "m", [], {PER_WORKER: "0.7"}, "10.0.0.1", 8100, 1, 1, 1, "f",
        node_ips=["10.0.0.1"],
    )  # fmt: skip
    why = "0.7 GPUs are needed on a, 0.4 are free" if waits else ""
    assert why_wait(document, conditions, 0.0) == why


def test_a_replica_outlives_other_hosts(bench: Bench) -> None:
    bench.declare(node_ips=["10.0.0.1"], gpus=1, tensor_parallel=1)
    bench.start()
    first = bench.await_service("ready").pid

    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n2", alive=False))
    await_value(
        lambda: (s := bench.state()) and not all(node.alive for node in s.nodes), "the news"
    )

    assert bench.await_service("ready").pid == first


def test_a_rank_belongs_to_the_driver_on_its_own_host() -> None:
    actor = {
        "ActorClassName": "RayWorkerProc",
        "Name": "vllm_Worker_x_TP0",
        "State": "ALIVE",
        "JobID": "01",
        "Pid": 7,
        "Address": {"NodeID": "n2", "IPAddress": "10.0.0.2"},
    }
    jobs = [{"JobID": "01", "DriverPid": 5, "DriverIPAddress": "10.0.0.2"}]
    (worker,) = worker_actors({"1": actor}, jobs)
    assert (worker.driver_ip, worker.driver_pid) == ("10.0.0.2", 5)


def test_two_replicas_of_a_host_get_different_ports_for_their_stores(bench: Bench) -> None:
    """vLLM before 0.29 otherwise has both look for a free one from port 100 on, at the same time;
    a variable of the user's wins."""
    ray = bench.document().ray_argv
    bench.declare_node(ray_argv=[*ray, "--min-worker-port=11000", "--max-worker-port=11999"])
    one = {"node_ips": ["10.0.0.1"], "gpus": 0, "tensor_parallel": 1}
    bench.declare("chat", port=8100, **one)
    bench.declare("chat@2", port=8101, replica=2, **one)
    bench.declare("own", port=8102, env={"VLLM_DP_MASTER_PORT": "20000"}, **one)
    bench.start()

    starts = await_value(
        lambda: bench.starts("vllm") if len(bench.starts("vllm")) > 2 else None, "three starts"
    )

    # vLLM adds 100
    bases = {start["env"]["VLLM_DP_MASTER_PORT"] for start in starts}
    assert bases == {"11800", "11804", "20000"}


def test_services_on_shares_of_gpus_start_in_turn(bench: Bench) -> None:
    """vLLM would count what the other one takes as its own."""
    part = {"node_ips": ["10.0.0.1"], "gpus": 1, "tensor_parallel": 1, "env": {PER_WORKER: "0.4"}}
    bench.behaviour("vllm", {"never_listen": True})
    bench.declare("chat", **part)
    bench.start()
    bench.await_service("loading")

    bench.declare("other", **part)
    bench.declare("whole", node_ips=["10.0.0.2"], gpus=1, tensor_parallel=1)
    told = f"{IN_TURN}: chat starts on a share of a GPU, too"
    await_value(lambda: (s := bench.service("other")) and s.detail == told, told)
    await_value(lambda: (s := bench.service("whole")) and s.state == "loading", "a whole GPU")

    bench.behaviour("vllm", {})
    bench.await_service("ready")
    await_value(lambda: (s := bench.service("other")) and s.state != "waiting", "its turn")
