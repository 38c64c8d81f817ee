"""Ranks whose processes start before vLLM asks for them, with a real Ray and a stand-in for vLLM's
module of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from clusterctl.node.prestart import FAILED, RANK_VARIABLES
from clusterctl.node.prestarted import LIMIT, NO_JOB, RANK_MODULE

# A cluster and `prestart`; then, as vLLM does, a placement group and two actors in it with a
# runtime environment. Only one of them was started early.
TAKEN = """
import json, os, subprocess, sys, threading, time
import ray

context = ray.init("local", num_gpus=2, num_cpus=2, include_dashboard=False, log_to_driver=False)
ip = ray.util.get_node_ip_address()
argv = [sys.executable, "-m", "clusterctl.node", "prestart", "--variables", "NOSET_A",
        "--address", context.address_info["gcs_address"], f"{ip}=1", "10.9.9.9=1"]
asked = subprocess.run(argv, capture_output=True, text=True)
while not os.path.exists(os.environ["IMPORTED"]):
    time.sleep(0.1)
group = ray.util.placement_group([{"GPU": 1}, {"GPU": 1}])

class Rank:
    def look(self, module):
        return {"pid": os.getpid(), "job": os.environ["RAY_JOB_ID"], "gpus": ray.get_gpu_ids(),
                "variable": os.environ["NOSET_A"], "imported": module in sys.modules}

    def outlive_the_limit(self):
        from clusterctl.node import prestarted
        os.environ[prestarted.LIMIT] = "0"
        waiting = threading.Thread(target=prestarted._end_unless_taken)
        waiting.start()
        waiting.join()

found = []
for _ in range(2):
    options = {"placement_group": group, "num_gpus": 1, "num_cpus": 0}
    actor = ray.remote(Rank).options(runtime_env={"env_vars": {"NOSET_A": "1"}}, **options).remote()
    globals()[f"kept{len(found)}"] = actor
    found.append(ray.get(actor.look.remote(sys.argv[1])))
ray.get(kept0.outlive_the_limit.remote())
early = int(open(os.environ["IMPORTED"]).read())
print(json.dumps({"asked": asked.stdout, "early": early, "ranks": found}))
"""

# One that nobody takes
LEFT = """
import json, os, subprocess, sys, time
import ray

context = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
ip = ray.util.get_node_ip_address()
argv = [sys.executable, "-m", "clusterctl.node", "prestart", "--variables", "NOSET_A",
        "--address", context.address_info["gcs_address"], f"{ip}=1"]
subprocess.run(argv, check=True)
while not os.path.exists(os.environ["IMPORTED"]):
    time.sleep(0.1)
early = int(open(os.environ["IMPORTED"]).read())
while os.path.exists(f"/proc/{early}"):
    time.sleep(0.1)
print(json.dumps("ended"))
"""


def run(script: str, tmp_path: Path, limit: str) -> Any:
    """Run a script whose Ray finds the stand-in, which writes its pid when it is imported."""
    module = tmp_path.joinpath(*RANK_MODULE.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    imported = tmp_path / "imported"
    module.write_text(
        "import os\n"
        "path = os.environ['IMPORTED']\n"
        "open(path + '.new', 'w').write(str(os.getpid()))\n"
        "os.rename(path + '.new', path)\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]),
        "IMPORTED": str(imported),
        LIMIT: limit,
        RANK_VARIABLES: "NOSET_A",
        "RAY_preload_python_modules": "clusterctl.node.prestarted",
        "RAY_prestart_worker_first_driver": "0",
    }
    argv = [sys.executable, "-c", script, RANK_MODULE]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=env)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_rank_gets_the_process_that_has_imported_vllm(tmp_path: Path) -> None:
    found = run(TAKEN, tmp_path, limit="600")
    first, second = found["ranks"]
    told = found["asked"].splitlines()
    why = "LookupError: Ray lists no live node of this address"
    assert f"{FAILED} on 10.9.9.9: {why}" in told
    assert sorted(first.pop("gpus") + second["gpus"]) == [0, 1]
    assert first == {"pid": found["early"], "job": NO_JOB, "variable": "1", "imported": True}
    assert (second["job"] == NO_JOB, second["imported"]) == (False, False)


def test_one_that_no_rank_takes_ends(tmp_path: Path) -> None:
    assert run(LEFT, tmp_path, limit="1") == "ended"
