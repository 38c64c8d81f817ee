"""The fabric gate, step by step, run on the head. Every step has a deadline, and the first failure
ends the gate with a report. This module uses neither Ray nor torch.

    arrive      Ray starts a process on every node, which reports its environment
    import      ranks, one per GPU, have imported torch
    store       rank 0 has opened the TCPStore through which the ranks meet
    gloo, nccl  all-reduces: joined, correct, measured; nccl (or another GPU backend) between GPUs

The links between hosts have been tested before (`network.pairs`). If a collective still fails, it
is repeated in pairs of nodes, which shows the faulty node.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple

from clusterctl.node.documents import ExpectedNode
from clusterctl.node.fabric_documents import (
    Collective,
    FabricReport,
    FabricSpec,
    PairReport,
    RankReport,
    SeenNode,
)
from clusterctl.node.timing import GateTiming

Pair = Tuple[ExpectedNode, ExpectedNode]

_PHASES = ("started", "imported", "store", "joined", "correct", "measured", "done")


@dataclass(frozen=True)
class AgentAnswer:
    """Return value of an agent's method, or the error."""

    value: Any = None
    error: str = ""


class Agents(Protocol):
    """The agents on all nodes, one `Agent` each."""

    def ask(
        self, method: str, arguments: Mapping[str, Sequence[Any]], within: float
    ) -> Dict[str, AgentAnswer]:
        """Call `method` on each host of `arguments` at once, and wait at most `within` seconds."""


class GateFailed(Exception):
    """A step failed: ranks did not reach a phase in time or reported an error, or the report has
    the details."""

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
            self._arrive()
            ranks = self._ranks = Ranks(self.spec, self.agents, self.limits)
            try:
                if ranks.world > 1:
                    ranks.launch()
                    self._collectives(ranks)
            finally:
                self._note(ranks=ranks.stop())
        except GateFailed as failure:
            self._note(failed=failure.step, error=failure.error)
        self._note(seconds=time.monotonic() - began)
        return self.report

    def _arrive(self) -> None:
        self._say("starting a process on every node through Ray")
        asked = {node.host: () for node in self.spec.nodes}
        answers = self.agents.ask("look", asked, self.limits.arrive)
        absent = {host: answer.error for host, answer in answers.items() if answer.error}
        seen: List[SeenNode] = [answer.value for answer in answers.values() if not answer.error]
        self._note(absent=absent, seen=seen)
        if absent:
            raise GateFailed("arrive")

    def _collectives(self, ranks: Ranks) -> None:
        try:
            self._say(f"{ranks.world} ranks import torch")
            ranks.await_imported()
            ranks.open_store()
            ranks.join()
            for backend in ranks.backends:
                self._say(f"all-reduce over {backend}")
                measured = ranks.await_measured(backend)
                self._note(collectives=[*self.report.collectives, measured])
        except GateFailed as failure:
            self._note(ranks=ranks.stop(), failed=failure.step, error=failure.error)
            # With two nodes, a pair would only repeat the same test.
            if failure.step in ranks.backends and len(self.spec.nodes) > 2:
                self._say(f"{failure.step} failed with all nodes: trying pairs")
                began = time.monotonic()
                pairs = try_pairs(self.spec, self.agents, self.limits, failure.step, began)
                self._note(pairs=pairs)
            raise

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
        except (GateFailed, ValueError) as failure:
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


@dataclass(frozen=True)
class Seat:
    rank: int
    host: str
    node_ip: str
    device: int  # -1 without a GPU


def seats(spec: FabricSpec) -> List[Seat]:
    """Return one rank per GPU, and one for a node without any; on CPUs one per node."""
    found: List[Seat] = []
    for node in spec.nodes:
        gpus = node.gpus if spec.gpu_backend.device else 0
        for device in range(gpus) if gpus else (-1,):
            found.append(Seat(len(found), node.host, node.node_ip, device))
    return found


class Ranks:
    """The ranks of one all-reduce, over all nodes or some. Methods raise GateFailed."""

    def __init__(self, spec: FabricSpec, agents: Agents, limits: GateTiming) -> None:
        self._agents = agents
        self._limits = limits
        self._seats = seats(spec)
        self._backend = spec.gpu_backend
        self._gpus = [seat.rank for seat in self._seats if seat.device >= 0]
        self._heard: Dict[int, List[Dict[str, Any]]] = {}  # Events of each rank
        self._stopped: List[RankReport] = []
        self._port = 0
        # The ranks being awaited, and the phase and backend that they must reach.
        self._wanted: Tuple[Sequence[int], str, str] = ((), "", "")

    @property
    def world(self) -> int:
        return len(self._seats)

    @property
    def backends(self) -> Tuple[str, ...]:
        return ("gloo", self._backend.collectives) if len(self._gpus) > 1 else ("gloo",)

    def launch(self) -> None:
        self._ask("launch", {seat.rank: seat.device for seat in self._seats})

    def await_imported(self) -> None:
        ranks = [seat.rank for seat in self._seats]
        self._await("import", ranks, "imported", "", self._limits.importing)

    def open_store(self) -> None:
        """Make rank 0 open the TCPStore. The other ranks get its port in the order to join."""
        self._ask("order", {0: {"do": "store", "ip": self._seats[0].node_ip}})
        self._await("store", [0], "store", "", self._limits.store)
        (event,) = [event for event in self._heard[0] if event["phase"] == "store"]
        self._port = event["port"]

    def join(self) -> None:
        order = {
            "do": "join",
            "ip": self._seats[0].node_ip,
            "port": self._port,
            "world": self.world,
            "gpus": self._gpus if len(self._gpus) > 1 else [],
            "gpu_device": self._backend.device,
            "gpu_backend": self._backend.collectives,
            "within": self._limits.join,
        }
        ranks = {s.rank: {**order, "rank": s.rank, "device": s.device} for s in self._seats}
        self._ask("order", ranks)

    def await_measured(self, backend: str) -> Collective:
        """Wait until the ranks joined, verified the sum and measured, each with its own timeout."""
        members = [seat for seat in self._seats if backend == "gloo" or seat.device >= 0]
        ranks = [seat.rank for seat in members]
        self._await(backend, ranks, "joined", backend, self._limits.join)
        self._await(backend, ranks, "correct", backend, self._limits.correct)
        self._await(backend, ranks, "measured", backend, self._limits.measure)
        event = next(
            event
            for event in self._heard[members[0].rank]
            if event["phase"] == "measured" and event["backend"] == backend
        )
        hosts = len({seat.host for seat in members})
        parties = hosts if hosts > 1 else len(members)
        return Collective(
            backend=backend,
            ranks=len(members),
            hosts=hosts,
            bandwidth=2 * (parties - 1) / parties * event["size"] / event["seconds"],
            latency=event["latency"],
            size=event["size"],
        )

    def stop(self) -> List[RankReport]:
        """End all processes and report on each rank. A second call returns the same reports."""
        if not self._stopped:
            hosts = {seat.host: () for seat in self._seats}
            answers = self._agents.ask("stop_ranks", hosts, self._limits.answer)
            reports = [one for answer in answers.values() for one in answer.value or ()]
            for one in sorted(reports, key=lambda one: one.rank):
                phase, backend, error = _furthest(self._heard.get(one.rank, []))
                self._stopped.append(replace(one, phase=phase, backend=backend, error=error))
        return self._stopped

    def behind(self) -> Dict[str, List[int]]:
        """Return, by host, the ranks that have not yet reached the awaited phase."""
        ranks, phase, backend = self._wanted
        found: Dict[str, List[int]] = {}
        for rank in ranks:
            events = self._heard.get(rank, [])
            if not any(e["phase"] == phase and e.get("backend", "") == backend for e in events):
                found.setdefault(self._seats[rank].host, []).append(rank)
        return found

    def _await(
        self, step: str, ranks: Sequence[int], phase: str, backend: str, within: float
    ) -> None:
        """Poll until these ranks report `phase`. Raises GateFailed if a rank reports an error, if
        its process has ended, and after `within` seconds."""
        self._wanted = (ranks, phase, backend)
        hosts = {seat.host: () for seat in self._seats}
        deadline = time.monotonic() + within
        while True:
            for host, answer in self._agents.ask("hear", hosts, self._limits.answer).items():
                if answer.error:
                    raise GateFailed(step, f"{host}: {answer.error}")
                self._heard.update(answer.value)
            errors = {rank: _furthest(events)[2] for rank, events in sorted(self._heard.items())}
            broken = [f"rank {rank}: {error}" for rank, error in errors.items() if error]
            if broken:
                raise GateFailed(step, "; ".join(broken)[:2000])
            if not self.behind():
                return
            if time.monotonic() > deadline:
                raise GateFailed(step, f"not within {within:g} s")
            time.sleep(self._limits.poll)

    def _ask(self, method: str, by_rank: Mapping[int, Any]) -> None:
        by_host: Dict[str, Dict[int, Any]] = {}
        for rank, value in by_rank.items():
            by_host.setdefault(self._seats[rank].host, {})[rank] = value
        arguments = {host: (values,) for host, values in by_host.items()}
        for host, answer in self._agents.ask(method, arguments, self._limits.answer).items():
            if answer.error:
                raise GateFailed("arrive", f"{host}: {answer.error}")


def _furthest(events: Sequence[Mapping[str, Any]]) -> Tuple[str, str, str]:
    """Return the phase and backend that a rank has reached, and its error ("" if none)."""
    phase, backend, error = "started", "", ""
    for event in events:
        if event["phase"] in _PHASES:
            phase, backend = event["phase"], event.get("backend", backend)
        elif event["phase"] == "error":
            error = str(event.get("text", ""))
        elif not error:
            error = f"its process ended with status {event.get('status')}"
    return phase, backend, error
