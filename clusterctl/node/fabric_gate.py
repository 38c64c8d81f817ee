"""The fabric gate, step by step, run on the head. Every step has a deadline, and the first failure
ends the gate with a report. This module uses neither Ray nor torch.

    arrive      Ray starts a process on every node
    places      the interfaces that the environment names exist, are up, and have an address
    crossings   every node reaches every other one on each of these addresses
    import      ranks, one per GPU, have imported torch
    store       rank 0 has opened the TCPStore through which the ranks meet
    gloo, nccl  all-reduces: joined, correct, measured; nccl (or another GPU backend) between GPUs

When a collective fails although every connection worked, it is repeated in pairs of nodes, which
shows the faulty node.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from clusterctl.node.documents import ExpectedNode
from clusterctl.node.fabric_documents import FabricReport, FabricSpec, PairReport, SeenNode
from clusterctl.node.fabric_ranks import Agents, Ranks, RanksFailed
from clusterctl.node.timing import GateTiming

Pair = Tuple[ExpectedNode, ExpectedNode]


class GateFailed(Exception):
    """A step failed; the report has the details."""

    def __init__(self, step: str, error: str = "") -> None:
        super().__init__(error)
        self.step = step
        self.error = error


@dataclass
class Gate:
    spec: FabricSpec
    agents: Agents
    say: Callable[[str], None] = lambda _: None
    limits: GateTiming = field(default_factory=GateTiming)
    report: FabricReport = field(default_factory=lambda: FabricReport(0.0))
    _doing: str = ""
    _ranks: Optional[Ranks] = None

    def so_far(self, limit: float) -> FabricReport:
        """Return the report for a gate that is stopped after `limit` seconds: with the failure
        found, or with what it is waiting for."""
        if self.report.failed:
            return self.report
        behind = self._ranks.behind() if self._ranks else {}
        seen = {node.host for node in self.report.seen}
        unseen: Dict[str, List[int]] = {n.host: [] for n in self.spec.nodes if n.host not in seen}
        error = f"{limit:g} s ({self._doing})"
        return replace(
            self.report, seconds=limit, failed="time", error=error, awaited=behind or unseen
        )

    def run(self) -> FabricReport:
        """Run all steps. Never raises for failures of nodes: they are in the report."""
        began = time.monotonic()
        try:
            self._timed("arrive", self._arrive)
            ranks = self._ranks = Ranks(self.spec, self.agents, self.limits)
            try:
                if ranks.world > 1:
                    ranks.launch()  # ranks import torch while connections are tried
                if len(self.spec.nodes) > 1:
                    self._timed("crossings", self._crossings)
                if ranks.world > 1:
                    self._collectives(ranks)
            finally:
                self._note(ranks=ranks.stop())
        except (GateFailed, RanksFailed) as failure:
            self._note(failed=failure.step, error=failure.error)
        self._note(seconds=time.monotonic() - began)
        return self.report

    def _timed(self, step: str, work: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            work()
        finally:
            self._note(timeline={**self.report.timeline, step: time.monotonic() - began})

    def _arrive(self) -> None:
        self._say("starting a process on every node through Ray")
        asked = {node.host: (node.node_ip,) for node in self.spec.nodes}
        answers = self.agents.ask("look", asked, self.limits.arrive)
        absent = {host: answer.error for host, answer in answers.items() if answer.error}
        seen: List[SeenNode] = [answer.value for answer in answers.values() if not answer.error]
        self._note(absent=absent, seen=seen)
        if absent:
            raise GateFailed("arrive")
        if any(place.problem for node in seen for place in node.places):
            raise GateFailed("places")

    def _crossings(self) -> None:
        self._say("connecting every node with every other one")
        places = {node.host: (node.places,) for node in self.report.seen}
        offered = [one for found in self._ask("listen", places).values() for one in found]
        wrong = [one for one in offered if one.error]
        targets = {
            node.host: ([one for one in offered if one.target != node.host],)
            for node in self.spec.nodes
        }
        found = [] if wrong else self._ask("cross", targets).values()
        crossings = [*wrong, *(one for tried in found for one in tried)]
        self._note(crossings=crossings)
        if any(one.error for one in crossings):
            raise GateFailed("crossings")

    def _ask(self, method: str, arguments: Mapping[str, Sequence[Any]]) -> Dict[str, Any]:
        answers = self.agents.ask(method, arguments, self.limits.answer)
        silent = {host: answer.error for host, answer in answers.items() if answer.error}
        if silent:
            self._note(absent=silent)
            raise GateFailed("arrive")
        return {host: answer.value for host, answer in answers.items()}

    def _collectives(self, ranks: Ranks) -> None:
        def measure(backend: str) -> None:
            found = ranks.await_measured(backend)
            self._note(collectives=[*self.report.collectives, found])

        try:
            self._say(f"{ranks.world} ranks import torch")
            self._timed("import", ranks.await_imported)
            self._timed("store", ranks.open_store)
            ranks.join()
            for backend in ranks.backends:
                self._say(f"all-reduce over {backend}")
                self._timed(backend, lambda name=backend: measure(name))  # type: ignore[misc]
        except RanksFailed as failure:
            self._note(ranks=ranks.stop(), failed=failure.step, error=failure.error)
            # With two nodes, a pair would only repeat the same test.
            if failure.step in ranks.backends and len(self.spec.nodes) > 2:
                self._say(f"{failure.step} failed with all nodes: trying pairs")
                began = time.monotonic()
                pairs = try_pairs(self.spec, self.agents, self.limits, failure.step, began)
                self._note(pairs=pairs)
            raise GateFailed(failure.step, failure.error) from failure

    def _say(self, doing: str) -> None:
        self._doing = doing
        self.say(doing)

    def _note(self, **found: Any) -> None:
        self.report = replace(self.report, **found)


def rounds(nodes: Sequence[ExpectedNode]) -> Iterator[List[Pair]]:
    """Yield all pairs, in rounds in which each node is in one pair at most (the circle method)."""
    places: List[Any] = list(nodes) + ([None] if len(nodes) % 2 else [])
    half = len(places) // 2
    for _ in range(len(places) - 1):
        facing = zip(places[:half], reversed(places[half:]))  # noqa: B905 - Python 3.9
        yield [(first, second) for first, second in facing if first and second]
        places = [places[0], places[-1], *places[1:-1]]


def try_pairs(
    spec: FabricSpec, agents: Agents, limits: GateTiming, backend: str, began: float
) -> List[PairReport]:
    """Repeat the collective in rounds of parallel pairs, until `limits.pairs` has passed.

    Three rounds identify one faulty node among any number: it fails with every partner.
    """

    def one(pair: Pair) -> PairReport:
        # One GPU per node is enough to show whether the nodes reach each other.
        nodes = [replace(node, gpus=min(node.gpus, 1)) for node in pair]
        ranks = Ranks(replace(spec, nodes=nodes), agents, limits)
        error = ""
        try:
            ranks.launch()
            ranks.await_imported()
            ranks.open_store()
            ranks.join()
            for name in ranks.backends[: ranks.backends.index(backend) + 1]:
                ranks.await_measured(name)
        except (RanksFailed, ValueError) as failure:
            error = str(failure)
        finally:
            ranks.stop()
        return PairReport(pair[0].host, pair[1].host, backend, not error, error)

    found: List[PairReport] = []
    for pairs in rounds(spec.nodes):
        if time.monotonic() - began > limits.pairs:
            break
        with ThreadPoolExecutor(len(pairs)) as pool:
            found += pool.map(one, pairs)
    return found
