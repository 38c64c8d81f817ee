"""Which rank each of a service's vLLM workers is."""

from __future__ import annotations

import re
from collections import Counter
from typing import List, Sequence, Tuple

from clusterctl.node.documents import Rank, RayNode
from clusterctl.node.ray_watch import UNNAMED, WORKER_PREFIX, WorkerActor

_RANK_NAME = re.compile(
    WORKER_PREFIX + r".+?(?:_dp(?P<dp>\d+))?(?:_TP(?P<tp>\d+))?(?:_PP(?P<pp>\d+))?(?:_PCP\d+)?$"
)


def ranks(
    workers: Sequence[WorkerActor],
    nodes: Sequence[RayNode],
    tensor_parallel: int,
    pipeline_parallel: int = 1,
) -> List[Rank]:
    """Return where each vLLM worker runs, by rank: TP varies fastest, then PP, then DP."""
    hosts = {node.node_id: node.name for node in nodes}
    found = []
    for number, worker in enumerate(_in_order(workers)):
        tp, pp = number % tensor_parallel, number // tensor_parallel % pipeline_parallel
        found.append(
            Rank(number, tp, pp, hosts.get(worker.node_id, ""), worker.node_ip, worker.pid)
        )
    for worker in workers:
        match = _RANK_NAME.match(worker.name)
        if match and not worker.name.startswith(UNNAMED):
            dp, tp, pp = (int(match[size] or 0) for size in ("dp", "tp", "pp"))
            rank = (dp * pipeline_parallel + pp) * tensor_parallel + tp
            host = hosts.get(worker.node_id, "")
            found.append(Rank(rank, tp, pp, host, worker.node_ip, worker.pid))
    return sorted(found, key=lambda rank: rank.rank)


def _in_order(workers: Sequence[WorkerActor]) -> List[WorkerActor]:
    """Return the workers without names by rank, as their executor numbers them: first those of its
    own host, then of hosts with fewer, then of smaller addresses (`_init_workers_ray` in vLLM's
    ray_distributed_executor.py). Which one of a host has which rank is not known."""
    unnamed = [worker for worker in workers if worker.name.startswith(UNNAMED)]
    count = Counter(worker.node_ip for worker in unnamed)

    def place(worker: WorkerActor) -> Tuple[bool, int, str, str]:
        elsewhere = worker.node_ip != worker.driver_ip
        return elsewhere, count[worker.node_ip], worker.node_ip, worker.name

    return sorted(unnamed, key=place)
