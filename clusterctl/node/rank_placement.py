"""A vLLM plugin that places the ranks of a replica on the hosts named in its document, and not on
GPUs that others hold.

vLLM asks Ray for a placement group with a GPU per rank and lets Ray choose the hosts; it has no
setting for that (initialize_ray_cluster in v1/executor/ray_utils.py). Ray's nodes each have a
resource `node:IP`, and a bundle that requests a little of it can only be placed there.

With data parallelism, vLLM requests a group per copy, and chooses the nodes itself by their free
GPUs (create_dp_placement_groups in v1/engine/utils.py). So it is shown only the replica's GPUs.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, List, Mapping

from clusterctl.node.held_gpus import SHARE, beside_held

if TYPE_CHECKING:
    from clusterctl.node.documents import ServiceDocument

NODE_IPS = "CLUSTERCTL_NODE_IPS"
COPIES = "CLUSTERCTL_COPIES"  # The number of data parallel ranks
# Another engine has memory of the GPUs that the ranks are to have: those with just room for their
# share, which Ray takes first.
BESIDE = "CLUSTERCTL_BESIDE"

Resources = Dict[str, float]

# vLLM's own variable: what each of its actors takes. Its placement group takes whole GPUs still.
PER_WORKER = "VLLM_RAY_PER_WORKER_GPUS"

# Of each GPU, for the first and the second of two engines that have it in turn (node/standby.py)
SHARES = ("0.75", "0.25")


def placement_env(document: ServiceDocument) -> Dict[str, str]:
    """Return the variables that this plugin follows."""
    copies = document.gpus // (document.tensor_parallel * document.pipeline_parallel)
    return {NODE_IPS: ",".join(document.node_ips), COPIES: str(copies)}


def gpu_share(env: Mapping[str, str]) -> float:
    """Return the share of a GPU that each rank takes in this environment: 1 for all of it."""
    try:
        share = float(env.get(PER_WORKER, "1"))
    except ValueError:
        return 1.0
    return share if 0 < share < 1 else 1.0


def register() -> None:
    """Make vLLM follow NODE_IPS, the nodes of the ranks in order (empty: Ray chooses), and keep off
    GPUs that others hold. Called by vLLM, maybe several times."""
    node_ips = [ip for ip in os.environ.get(NODE_IPS, "").split(",") if ip]
    util: Any = importlib.import_module("ray.util")
    if hasattr(util.placement_group, "node_ips"):
        return
    make = util.placement_group
    if BESIDE not in os.environ:
        make = beside_held(make, node_ips)

    def placement_group(bundles: List[Resources], *args: Any, **options: Any) -> Any:
        if not str(options.get("name", "")).startswith("dp_rank_"):  # Those name their node
            bundles = pinned(bundles, node_ips)
        return make(shared(bundles, gpu_share(os.environ)), *args, **options)

    placement_group.node_ips = node_ips  # type: ignore[attr-defined]
    util.placement_group = placement_group

    if node_ips and os.environ.get(COPIES, "1") != "1":
        state: Any = importlib.import_module("ray._private.state")
        look = state.available_resources_per_node
        state.available_resources_per_node = lambda: own_gpus(look(), node_ips)


def pinned(bundles: List[Resources], node_ips: List[str]) -> List[Resources]:
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


def shared(bundles: List[Resources], share: float) -> List[Resources]:
    """Return the bundles with this share of a GPU instead of a whole one."""
    return [
        {name: share if name == "GPU" and need == 1 else need for name, need in bundle.items()}
        for bundle in bundles
    ]


def own_gpus(nodes: Mapping[str, Resources], node_ips: List[str]) -> Dict[str, Resources]:
    """Return the resources by node ID, with only one GPU for each rank, in the order of ranks. As
    in Ray, a node without free GPUs does not list any."""
    ranks = Counter(node_ips)
    found = {}
    for node_id, resources in sorted(nodes.items(), key=lambda node: _place(node[1], node_ips)):
        gpus = min(resources.get("GPU", 0.0), float(_own(resources, ranks)))
        rest = {name: amount for name, amount in resources.items() if name != "GPU"}
        found[node_id] = {**rest, "GPU": gpus} if gpus else rest
    return found


def _own(resources: Resources, ranks: Mapping[str, int]) -> int:
    return sum(count for node_ip, count in ranks.items() if f"node:{node_ip}" in resources)


def _place(resources: Resources, node_ips: List[str]) -> int:
    """Return the number of the first rank on the node; nodes without one come last."""
    ranks = (rank for rank, node_ip in enumerate(node_ips) if f"node:{node_ip}" in resources)
    return next(ranks, len(node_ips))
