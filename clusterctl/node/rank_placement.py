"""Makes Ray place the ranks of a replica on the hosts that its document names, and there not on
GPUs that others hold: a plugin of vLLM.

vLLM asks Ray for a placement group with a GPU per rank and lets Ray choose the hosts; it has no
setting for that (initialize_ray_cluster in v1/executor/ray_utils.py). Ray's nodes each have a
resource `node:IP`, and a bundle that asks for a little of it can only be placed there.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Dict, List, Mapping

from clusterctl.node.held_gpus import SHARE, beside_held

NODE_IPS = "CLUSTERCTL_NODE_IPS"

# vLLM's own variable: what each of its actors takes. Its placement group takes whole GPUs still.
PER_WORKER = "VLLM_RAY_PER_WORKER_GPUS"


def placement_env(node_ips: List[str]) -> Dict[str, str]:
    """Return the variable that this plugin follows; none if Ray chooses the hosts."""
    return {NODE_IPS: ",".join(node_ips)} if node_ips else {}


def placed_on(env: Mapping[str, str]) -> List[str]:
    """Return the nodes of the ranks that an environment names, in order; none if Ray chooses."""
    return [ip for ip in env.get(NODE_IPS, "").split(",") if ip]


def gpu_share(env: Mapping[str, str]) -> float:
    """Return the part of a GPU that each rank of an environment takes: 1 for all of it."""
    try:
        share = float(env.get(PER_WORKER, "1"))
    except ValueError:
        return 1.0
    return share if 0 < share < 1 else 1.0


def register() -> None:
    """Make bundles of placement groups ask for the nodes of NODE_IPS, and keep off GPUs that others
    hold. Called by vLLM."""
    node_ips = placed_on(os.environ)
    util: Any = importlib.import_module("ray.util")
    if hasattr(util.placement_group, "node_ips"):
        return
    make = beside_held(util.placement_group, node_ips)

    def placement_group(bundles: List[Dict[str, float]], *args: Any, **options: Any) -> Any:
        return make(shared(pinned(bundles, node_ips), gpu_share(os.environ)), *args, **options)

    placement_group.node_ips = node_ips  # type: ignore[attr-defined]
    util.placement_group = placement_group


def pinned(bundles: List[Dict[str, float]], node_ips: List[str]) -> List[Dict[str, float]]:
    """Return the bundles, each with the node of its rank; unchanged if there are more or fewer of
    them than ranks."""
    if len(bundles) != len(node_ips):
        return bundles
    return [
        {
            **{name: need for name, need in bundle.items() if not name.startswith("node:")},
            f"node:{node_ip}": SHARE,
        }
        for bundle, node_ip in zip(bundles, node_ips)  # noqa: B905 - Python 3.9
    ]


def shared(bundles: List[Dict[str, float]], share: float) -> List[Dict[str, float]]:
    """Return the bundles with this part of a GPU in place of a whole one."""
    return [
        {name: share if name == "GPU" and need == 1 else need for name, need in bundle.items()}
        for bundle in bundles
    ]
