"""The gate, step by step, from the head: every step has a deadline, and the first that fails ends
it with what was seen. Knows neither Ray nor torch.

    arrive      Ray starts a process on every node
    places      the interfaces that the environment names are there, up, with an address
    crossings   every node reaches every other one on each of these addresses
    import      ranks, one per GPU, have torch
    store       rank 0 opens the store that the ranks meet at
    gloo, nccl  all-reduces: joined, right, measured; nccl, or what else GPUs have, between GPUs

When a collective fails though every connection came about, pairs of nodes try it alone: that
names the node which spoils it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from clusterctl.node.fabric_agents import Agents
from clusterctl.node.fabric_documents import Collective, FabricReport, FabricSpec, SeenNode
from clusterctl.node.fabric_pairs import try_pairs
from clusterctl.node.fabric_ranks import Ranks, RanksFailed
from clusterctl.node.timing import GateTiming


class GateFailed(Exception):
    """A step failed; the report says the rest."""

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
        """For who ends a gate that still runs after `limit` seconds: the failure that it looks
        into, else whom it waits for."""
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
        """Never raises for what nodes do; ends within the sum of the limits."""
        began = time.monotonic()
        try:
            self._steps()
        except (GateFailed, RanksFailed) as failure:
            self._note(failed=failure.step, error=failure.error)
        self._note(seconds=time.monotonic() - began)
        return self.report

    def _steps(self) -> None:
        self._timed("arrive", self._arrive)
        ranks = self._ranks = Ranks(self.spec, self.agents, self.limits)
        try:
            if ranks.world > 1:
                ranks.launch()  # torch is imported while connections are tried
            if len(self.spec.nodes) > 1:
                self._timed("crossings", self._crossings)
            if ranks.world > 1:
                self._collectives(ranks)
        finally:
            self._note(ranks=ranks.stop())

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
        try:
            self._say(f"{ranks.world} ranks import torch")
            self._timed("import", ranks.await_imported)
            self._timed("store", ranks.open_store)
            ranks.join()
            for backend in ranks.backends:
                self._say(f"all-reduce over {backend}")
                self._timed(backend, lambda name=backend: self._measured(ranks, name))  # type: ignore[misc]
        except RanksFailed as failure:
            self._note(ranks=ranks.stop(), failed=failure.step, error=failure.error)
            self._bisect(ranks, failure)
            raise GateFailed(failure.step, failure.error) from failure

    def _measured(self, ranks: Ranks, backend: str) -> None:
        found: Collective = ranks.await_measured(backend)
        self._note(collectives=[*self.report.collectives, found])

    def _bisect(self, ranks: Ranks, failure: RanksFailed) -> None:
        """Nodes of a failed collective, two by two; with two nodes there is nothing to learn."""
        if failure.step not in ranks.backends or len(self.spec.nodes) < 3:
            return
        self._say(f"{failure.step} failed with all nodes: trying pairs")
        began = time.monotonic()
        pairs = try_pairs(self.spec, self.agents, self.limits, failure.step, began)
        self._note(pairs=pairs)

    def _say(self, doing: str) -> None:
        self._doing = doing
        self.say(doing)

    def _note(self, **found: Any) -> None:
        self.report = replace(self.report, **found)
