"""When a service may start, and when a running one has lost its ground. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import FrozenSet, List, Mapping, Optional, Sequence

from clusterctl.node.contract import breaches, free_gpus
from clusterctl.node.documents import ExpectedNode, Rank, RayNode, ServiceDocument
from clusterctl.node.ray_watch import WORKER_PREFIX, Snapshot, WorkerActor

_RANK_NAME = re.compile(WORKER_PREFIX + r".+?(?:_TP(?P<tp>\d+))?(?:_PP(?P<pp>\d+))?(?:_PCP\d+)?$")


@dataclass(frozen=True)
class Ground:
    """What a service stands on, at one moment."""

    expected: Sequence[ExpectedNode]
    snapshot: Optional[Snapshot]  # None when Ray's last report is too old to prove anything
    ray_up: bool  # On this host
    env: Mapping[str, str]
    taken: float = 0.0  # Monotonic seconds of that report


def why_wait(document: ServiceDocument, ground: Ground, not_before: float) -> str:
    """Why the service cannot start yet, or nothing.

    `not_before` (monotonic seconds): an older snapshot still counts the GPUs of the last attempt.
    """
    if not ground.ray_up:
        return "for Ray on this host"
    snapshot = ground.snapshot
    if snapshot is None or ground.taken < not_before:
        return "for Ray's own report of its nodes"
    found = breaches(ground.expected, snapshot.nodes)
    if found:
        return "; ".join(f"{breach.host} {breach.summary}" for breach in found)
    free = free_gpus(snapshot.nodes)
    if free < document.gpus:
        return f"{document.gpus} GPUs are needed, and {free:g} are free"
    return ""


def living(snapshot: Optional[Snapshot]) -> FrozenSet[str]:
    """Ids of the nodes that live."""
    nodes = snapshot.nodes if snapshot else []
    return frozenset(node.node_id for node in nodes if node.alive)


def who_left(started_with: FrozenSet[str], snapshot: Optional[Snapshot]) -> str:
    """The node that was there at the start and is dead now, or nothing.

    A raylet that came back has another id: vLLM's worker on the old one is gone all the same.
    """
    gone = [node for node in (snapshot.nodes if snapshot else []) if not node.alive]
    return next((_named(node) for node in gone if node.node_id in started_with), "")


def _named(node: RayNode) -> str:
    return f"{node.name or node.node_ip} left Ray: {node.death_reason or 'no reason given'}"


def ranks(
    workers: Sequence[WorkerActor], nodes: Sequence[RayNode], tensor_parallel: int
) -> List[Rank]:
    """Where each vLLM worker runs, by rank: TP counts fastest, then PP."""
    hosts = {node.node_id: node.name for node in nodes}
    found = [_rank(worker, hosts.get(worker.node_id, ""), tensor_parallel) for worker in workers]
    return sorted((rank for rank in found if rank), key=lambda rank: rank.rank)


def _rank(worker: WorkerActor, host: str, tensor_parallel: int) -> Optional[Rank]:
    match = _RANK_NAME.match(worker.name)
    if match is None:
        return None
    tp, pp = int(match["tp"] or 0), int(match["pp"] or 0)
    return Rank(
        rank=pp * tensor_parallel + tp,
        tp=tp,
        pp=pp,
        host=host,
        node_ip=worker.node_ip,
        pid=worker.pid,
    )
