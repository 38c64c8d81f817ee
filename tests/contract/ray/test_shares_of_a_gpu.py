"""Ranks that share a GPU, as Ray itself counts: with vLLM's placement group and its actors."""

from __future__ import annotations

import json
import subprocess
import sys

# What vLLM does in three services, each in a process of its own with its own environment.
SERVICES = """
import json, os, sys
import ray
from clusterctl.node import rank_placement

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
ray.init("local", num_gpus=1, num_cpus=2, include_dashboard=False, log_to_driver=False)
node_ip = ray.util.get_node_ip_address()
whole = ray.util.placement_group

@ray.remote
class Rank:
    def here(self):
        return ray.util.get_node_ip_address()

found = {}
for share in ("0.3", "0.6", "0.2"):
    os.environ["CLUSTERCTL_NODE_IPS"], os.environ["VLLM_RAY_PER_WORKER_GPUS"] = node_ip, share
    ray.util.placement_group = whole
    rank_placement.register()
    group = ray.util.placement_group([{"GPU": 1.0}], strategy="PACK")
    if not group.wait(5):
        found[share] = "no room"
        continue
    options = {"placement_group": group, "num_gpus": float(share), "num_cpus": 0}
    rank = Rank.options(**options).remote()
    found[share] = ray.get(rank.here.remote(), timeout=60) == node_ip
    globals()[f"rank{share}"] = rank
print(json.dumps(found))
"""


def test_parts_of_one_gpu_are_given_until_it_is_full() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SERVICES], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {"0.3": True, "0.6": True, "0.2": "no room"}


# Two engines of two ranks each on the same of three GPUs, which end and start again.
PAIR = """
import json, os
import ray
from clusterctl.node import rank_placement

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
ray.init("local", num_gpus=3, num_cpus=2, include_dashboard=False, log_to_driver=False)
node_ip = ray.util.get_node_ip_address()
whole = ray.util.placement_group
os.environ["CLUSTERCTL_NODE_IPS"] = f"{node_ip},{node_ip}"
os.environ["CLUSTERCTL_BESIDE"] = "1"

@ray.remote
class Rank:
    def gpu(self):
        return ray.get_runtime_context().get_accelerator_ids()["GPU"]

def start(share):
    os.environ["VLLM_RAY_PER_WORKER_GPUS"] = share
    ray.util.placement_group = whole
    rank_placement.register()
    group = ray.util.placement_group([{"GPU": 1.0}, {"GPU": 1.0}], strategy="PACK")
    assert group.wait(60), share
    options = {"num_gpus": float(share), "num_cpus": 0, "placement_group": group}
    ranks = [
        Rank.options(**options, placement_group_bundle_index=index).remote() for index in range(2)
    ]
    gpus = sorted(ray.get([rank.gpu.remote() for rank in ranks], timeout=60))
    return group, ranks, gpus

def end(engine):
    for rank in engine[1]:
        ray.kill(rank)
    ray.util.remove_placement_group(engine[0])

first, standby = start("0.75"), start("0.25")
found = [first[2], standby[2]]
end(first)
first = start("0.75")
found.append(first[2])
end(standby)
standby = start("0.25")
found.append(standby[2])
end(first)
end(standby)
first, standby = start("0.75"), start("0.25")
found += [first[2], standby[2]]
print(json.dumps(found))
"""


def test_two_engines_have_the_same_gpus_and_their_ranks_different_ones() -> None:
    ran = subprocess.run([sys.executable, "-c", PAIR], capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    first, standby, first_again, standby_again, *anew = found
    assert len({gpu for rank in first for gpu in rank}) == 2, found
    assert standby == first_again == standby_again == first, found
    assert anew[0] == anew[1], found
