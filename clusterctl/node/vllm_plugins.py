"""The plugins through which vLLM's processes load code from this package.

vLLM loads the plugins of the group `vllm.general_plugins` in its API server, its engine and its
workers. They are found through node.pyz's entry points, on PYTHONPATH. Ray's workers get that path
from their raylet, the others from the supervisor.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Mapping

PLUGINS = {
    "clusterctl_compile_cache": "clusterctl.node.compile_cache:register",
    "clusterctl_rank_placement": "clusterctl.node.rank_placement:register",
    "clusterctl_stacks": "clusterctl.node.stacks:register",
}

ENTRY_POINTS = "[vllm.general_plugins]\n" + "".join(
    f"{name} = {target}\n" for name, target in PLUGINS.items()
)


def plugin_env(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables with which vLLM finds and loads these plugins besides others."""
    python_path = [str(Path(__file__).parents[2]), env.get("PYTHONPATH", "")]
    found = {"PYTHONPATH": os.pathsep.join(filter(None, python_path))}
    if env.get("VLLM_PLUGINS"):  # The plugins to load; all if it is not set
        found["VLLM_PLUGINS"] = ",".join([env["VLLM_PLUGINS"], *PLUGINS])
    return found
