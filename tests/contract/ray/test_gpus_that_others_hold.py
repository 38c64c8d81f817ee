"""A real Ray gives no rank a GPU whose memory others hold, as long as there are enough others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(280)]

# What vLLM does with what the plugin makes: a placement group with a GPU per rank, and an actor in
# each bundle. Afterwards nobody may keep a GPU that is not a rank's.
ENGINE = """\
import json, sys, time
from pathlib import Path
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from clusterctl.node.held_gpus import beside_held
from clusterctl.node.rank_placement import pinned

options = {"include_dashboard": False, "_temp_dir": sys.argv[1], "logging_level": 30}
ray.init("local", num_gpus=3, num_cpus=2, **options)
here = ray.util.get_node_ip_address()

class Rank:
    def gpu(self):
        return ray.get_runtime_context().get_accelerator_ids()["GPU"][0]

actor = ray.remote(num_gpus=1, num_cpus=0)(Rank)

def taken(count, places=()):
    own = places or [None] * count
    actors = [actor.options(scheduling_strategy=place).remote() for place in own]
    return actors, ray.get([one.gpu.remote() for one in actors], timeout=30)

for case in json.loads(sys.argv[2]):
    while ray.available_resources().get("GPU", 0) < 3:
        time.sleep(0.1)
    rows = [f"{gpu}, {case['held'].get(str(gpu), 4)}\\n" for gpu in range(3)]
    Path(sys.argv[3]).write_text("".join(rows))
    others, _ = taken(case["in_use"])
    node_ips = [here] * case["ranks"] if case["named"] else []
    make = beside_held(ray.util.placement_group, node_ips)
    group = make(pinned([{"GPU": 1.0}] * case["ranks"], node_ips), strategy="PACK")
    ray.get(group.ready(), timeout=60)
    places = [PlacementGroupSchedulingStrategy(group, n) for n in range(case["ranks"])]
    ranks, found = taken(case["ranks"], places)
    rest, _ = taken(3 - case["ranks"] - case["in_use"])
    print(json.dumps(sorted(found)), flush=True)
    for one in [*others, *ranks, *rest]:
        ray.kill(one)
    ray.util.remove_placement_group(group)
"""


@dataclass(frozen=True)
class Case:
    """A start on a host of three GPUs. `held`: MiB in use by GPU; `in_use`: the first GPUs, which
    Ray gave to other ranks; `named`: whether its host is named, or Ray's choice."""

    ranks: int
    held: dict[int, int]
    expected: list[str]
    in_use: int = 0
    named: bool = True


CASES = [
    Case(1, {0: 61440}, ["1"]),
    Case(1, {0: 61440}, ["1"], named=False),
    Case(2, {0: 61440, 1: 4}, ["1", "2"]),
    Case(1, {0: 300}, ["0"]),  # too little to matter
    Case(1, {0: 70000}, ["1"], in_use=1),  # our own rank's
    Case(1, {0: 70000, 1: 61440}, ["2"], in_use=1),
    Case(3, {1: 61440}, ["0", "1", "2"]),  # not enough others: vLLM says what is missing
    Case(3, {1: 61440}, ["0", "1", "2"], named=False),
]


def test_ranks_go_where_nobody_holds_memory(tmp_path: Path) -> None:
    shown = tmp_path / "gpus"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat {shown}\n")
    smi.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}

    # Ray's sockets have paths of at most 107 characters
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as directory:
        cases = json.dumps([asdict(case) for case in CASES])
        argv = [sys.executable, "-c", ENGINE, directory, cases, str(shown)]
        ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=270)

    assert ran.returncode == 0, ran.stderr
    assert list(map(json.loads, ran.stdout.splitlines())) == [case.expected for case in CASES]
