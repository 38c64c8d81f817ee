"""Keeps Ray from giving ranks GPUs whose memory others hold without Ray's knowledge.

Ray gives a bundle the first GPU that none of its own workers has.

So an idle actor takes each held GPU until the bundles of a placement group have theirs. Held memory
counts only on a GPU that Ray considers free: on others it belongs to our own rank.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import subprocess
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple

# Of the resource `node:IP`, of which each node has 1: enough for all ranks of a host.
SHARE = 0.001

HELD_MIB = 1024  # Less does no harm: facts/gpu_faults.py, FOREIGN_MEMORY

LIMIT = 30.0
"""Seconds for each step here. What takes longer is left: the start goes on as without this."""

_QUERY = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]


def beside_held(make: Callable[..., Any], node_ips: List[str]) -> Callable[..., Any]:
    """Wrap `make`, which creates Ray's placement groups, so that no bundle gets a held GPU as long
    as there are enough others. `node_ips`: of the ranks; empty if Ray chooses the hosts."""

    def placement_group(bundles: List[Dict[str, float]], *args: Any, **options: Any) -> Any:
        ray: Any = importlib.import_module("ray")
        seats: List[Any] = []
        try:
            with contextlib.suppress(Exception):  # Whatever Ray says, vLLM is to hear it itself
                _take_held(ray, bundles, node_ips, seats)
            group = make(bundles, *args, **options)
            if seats:
                group.wait(LIMIT)
            return group
        finally:
            for seat in seats:
                ray.kill(seat)

    return placement_group


def _take_held(
    ray: Any, bundles: List[Dict[str, float]], node_ips: List[str], seats: List[Any]
) -> None:
    """Add actors on held GPUs to `seats`; none if too few others would be left for the bundles."""
    if not all("GPU" in bundle for bundle in bundles):
        return  # Of a data parallel replica, whose node vLLM chooses
    if not shutil.which(_QUERY[0]):
        return  # No GPUs here. The task below would take the worker that waits for a rank.
    nodes = Counter(node_ips)
    if not node_ips:
        with_gpus = [one for one in ray.nodes() if one["Alive"] and one["Resources"].get("GPU")]
        nodes = Counter({one["NodeManagerAddress"]: 0 for one in with_gpus})

    free = 0
    for node_ip, needed in nodes.items():
        count = _gpu_count(ray, node_ip)
        taken = _seats_on_held(ray, node_ip, count, needed)
        seats += taken
        free += count.free - len(taken)
    if free < len(bundles):
        for seat in seats:
            ray.kill(seat)
        seats.clear()


def held_gpus() -> List[str]:
    """Return the indices of this host's GPUs with memory in use; none without NVIDIA's."""
    try:
        shown = subprocess.run(_QUERY, capture_output=True, text=True, timeout=LIMIT, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in shown.stdout.splitlines()]
    return [row[0] for row in rows if row[1:] and row[1].isdigit() and int(row[1]) >= HELD_MIB]


class Placeholder:
    """An actor on one GPU."""

    def gpu(self) -> str:
        ray: Any = importlib.import_module("ray")
        return str(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])


class GpusOfNode(NamedTuple):
    """The GPUs of a node as Ray counts them."""

    free: int
    used: int


def _seats_on_held(ray: Any, node_ip: str, count: GpusOfNode, needed: int) -> List[Any]:
    """Return actors on the held GPUs of a node; none if no GPU that Ray considers free is held, or
    if ranks could not start without the held ones. Raises what Ray raises."""
    there: Dict[str, Any] = {"num_cpus": 0, "resources": {f"node:{node_ip}": SHARE}}
    held = ray.get(ray.remote(**there)(held_gpus).remote(), timeout=LIMIT)
    if len(held) <= count.used:
        return []

    seats = [ray.remote(num_gpus=1, **there)(Placeholder).remote() for _ in range(count.free)]
    kept: List[Any] = []
    try:
        asked = {seat.gpu.remote(): seat for seat in seats}
        told, _ = ray.wait(list(asked), num_returns=len(asked), timeout=LIMIT)
        on_held = [asked[one] for one in told if ray.get(one) in held]
        if len(on_held) + needed <= count.free:
            kept = on_held
    finally:
        for seat in seats:
            if seat not in kept:
                ray.kill(seat)
    return kept


def _gpu_count(ray: Any, node_ip: str) -> GpusOfNode:
    """Raises StopIteration for a node that Ray does not know."""
    # vLLM asks like this, too: Ray's public API counts what is free in the cluster, not on a node
    state: Any = importlib.import_module("ray._private.state")
    alive = [one for one in ray.nodes() if one["Alive"]]
    node = next(one for one in alive if one["NodeManagerAddress"] == node_ip)
    total = int(node["Resources"].get("GPU", 0))
    free = int(state.available_resources_per_node()[node["NodeID"]].get("GPU", 0))
    return GpusOfNode(free, total - free)
