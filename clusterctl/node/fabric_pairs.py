"""After a collective of all nodes failed: the same between two nodes at a time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Iterator, List, Sequence, Tuple

from clusterctl.node.documents import ExpectedNode
from clusterctl.node.fabric_agents import Agents
from clusterctl.node.fabric_documents import FabricSpec, PairReport
from clusterctl.node.fabric_ranks import Ranks, RanksFailed
from clusterctl.node.timing import GateTiming

Pair = Tuple[ExpectedNode, ExpectedNode]


def rounds(nodes: Sequence[ExpectedNode]) -> Iterator[List[Pair]]:
    """All pairs, in rounds in which no node has two partners (the circle method)."""
    places: List[Any] = list(nodes) + ([None] if len(nodes) % 2 else [])
    half = len(places) // 2
    for _ in range(len(places) - 1):
        facing = zip(places[:half], reversed(places[half:]))  # noqa: B905 - Python 3.9
        yield [(first, second) for first, second in facing if first and second]
        places = [places[0], places[-1], *places[1:-1]]


def try_pairs(
    spec: FabricSpec, agents: Agents, limits: GateTiming, backend: str, began: float
) -> List[PairReport]:
    """Rounds of pairs, side by side, until time is over. Three rounds name one bad node among
    any number: it is the one that fails with every partner."""
    found: List[PairReport] = []
    for pairs in rounds(spec.nodes):
        if time.monotonic() - began > limits.pairs:
            break
        with ThreadPoolExecutor(len(pairs)) as pool:
            found += pool.map(lambda pair: _one(spec, agents, limits, backend, pair), pairs)
    return found


def _one(
    spec: FabricSpec, agents: Agents, limits: GateTiming, backend: str, pair: Pair
) -> PairReport:
    """One GPU of each node is enough: what is asked is whether they reach each other."""
    nodes = [replace(node, gpus=min(node.gpus, 1)) for node in pair]
    ranks = Ranks(replace(spec, nodes=nodes), agents, limits)
    error = ""
    try:
        ranks.launch()
        ranks.await_imported()
        ranks.open_store()
        ranks.join()
        for one in ranks.backends[: ranks.backends.index(backend) + 1]:
            ranks.await_measured(one)
    except (RanksFailed, ValueError) as failure:
        error = str(failure)
    finally:
        ranks.stop()
    return PairReport(pair[0].host, pair[1].host, backend, not error, error)
