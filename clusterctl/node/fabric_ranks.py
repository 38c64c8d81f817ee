"""The ranks of one all-reduce, over all nodes or some of them: started, led, waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from clusterctl.node.fabric_agents import Agents
from clusterctl.node.fabric_documents import Collective, FabricSpec, RankReport
from clusterctl.node.timing import GateTiming

Heard = Dict[int, List[Dict[str, Any]]]

_ORDER = ("started", "imported", "store", "joined", "correct", "measured", "done")


class RanksFailed(Exception):
    """Ranks did not come as far as they must in time, or said why they cannot."""

    def __init__(self, step: str, error: str) -> None:
        super().__init__(error)
        self.step = step
        self.error = error


@dataclass(frozen=True)
class Seat:
    rank: int
    host: str
    node_ip: str
    device: int


def seats(spec: FabricSpec) -> List[Seat]:
    """One for each GPU, and one for a node without any; on CPUs one for each node."""
    found: List[Seat] = []
    for node in spec.nodes:
        gpus = node.gpus if spec.gpu_backend.device else 0
        for device in range(gpus) if gpus else (-1,):
            found.append(Seat(len(found), node.host, node.node_ip, device))
    return found


class Ranks:
    def __init__(self, spec: FabricSpec, agents: Agents, limits: GateTiming) -> None:
        self._agents = agents
        self._limits = limits
        self._seats = seats(spec)
        self._backend = spec.gpu_backend
        self._gpus = [seat.rank for seat in self._seats if seat.device >= 0]
        self._heard: Heard = {}
        self._stopped: List[RankReport] = []
        self._port = 0
        self._wanted: Tuple[Sequence[int], str, str] = ((), "", "")
        """Ranks, and the phase and backend that they are waited for."""

    @property
    def world(self) -> int:
        return len(self._seats)

    @property
    def backends(self) -> Tuple[str, ...]:
        return ("gloo", self._backend.collectives) if len(self._gpus) > 1 else ("gloo",)

    def launch(self) -> None:
        self._ask("launch", {seat.rank: seat.device for seat in self._seats})

    def await_imported(self) -> None:
        self._await("import", self._all(), "imported", "", self._limits.importing)

    def open_store(self) -> None:
        """Rank 0 opens it; the others learn its port with the order to join."""
        self._ask("order", {0: {"do": "store", "ip": self._seats[0].node_ip}})
        self._await("store", [0], "store", "", self._limits.store)
        (event,) = [event for event in self._heard[0] if event["phase"] == "store"]
        self._port = event["port"]

    def join(self) -> None:
        self._ask("order", {seat.rank: self._joining(seat) for seat in self._seats})

    def _joining(self, seat: Seat) -> Dict[str, Any]:
        return {
            "do": "join",
            "ip": self._seats[0].node_ip,
            "port": self._port,
            "rank": seat.rank,
            "world": self.world,
            "device": seat.device,
            "gpus": self._gpus if len(self._gpus) > 1 else [],
            "gpu_device": self._backend.device,
            "gpu_backend": self._backend.collectives,
            "within": self._limits.join,
        }

    def await_measured(self, backend: str) -> Collective:
        """Joined, right and measured, each within its own limit."""
        members = self._members(backend)
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
        """End all processes; what is to say of each rank. A second call says the same again."""
        if not self._stopped:
            hosts = {seat.host: () for seat in self._seats}
            answers = self._agents.ask("stop_ranks", hosts, self._limits.answer)
            told = [one for answer in answers.values() for one in answer.value or ()]
            self._stopped = [self._report(one) for one in sorted(told, key=lambda one: one.rank)]
        return self._stopped

    def _report(self, told: RankReport) -> RankReport:
        events = self._heard.get(told.rank, [])
        phase, backend, error = _furthest(events)
        ended = any(event["phase"] == "ended" for event in events)
        return replace(told, phase=phase, backend=backend, error=error, ended=ended)

    def _members(self, backend: str) -> List[Seat]:
        return [seat for seat in self._seats if backend == "gloo" or seat.device >= 0]

    def _all(self) -> List[int]:
        return [seat.rank for seat in self._seats]

    def behind(self) -> Dict[str, List[int]]:
        """By host: ranks that have not come as far as they are waited for."""
        ranks, phase, backend = self._wanted
        found: Dict[str, List[int]] = {}
        for rank in ranks:
            if not self._has(self._heard.get(rank, []), phase, backend):
                found.setdefault(self._seats[rank].host, []).append(rank)
        return found

    @staticmethod
    def _has(events: Sequence[Mapping[str, Any]], phase: str, backend: str) -> bool:
        return any(e["phase"] == phase and e.get("backend", "") == backend for e in events)

    def _await(
        self, step: str, ranks: Sequence[int], phase: str, backend: str, within: float
    ) -> None:
        """Poll until these ranks told of it; an error, an end or the deadline before raises."""
        self._wanted = (ranks, phase, backend)
        deadline = time.monotonic() + within
        while True:
            self._hear(step)
            broken = [
                f"rank {rank}: {_furthest(events)[2]}"
                for rank, events in sorted(self._heard.items())
                if _furthest(events)[2]
            ]
            if broken:
                raise RanksFailed(step, "; ".join(broken)[:2000])
            if not self.behind():
                return
            if time.monotonic() > deadline:
                raise RanksFailed(step, f"not within {within:g} s")
            time.sleep(self._limits.poll)

    def _hear(self, step: str) -> None:
        hosts = {seat.host: () for seat in self._seats}
        for host, answer in self._agents.ask("hear", hosts, self._limits.answer).items():
            if answer.error:
                raise RanksFailed(step, f"{host}: {answer.error}")
            self._heard.update(answer.value)

    def _ask(self, method: str, by_rank: Mapping[int, Any]) -> None:
        by_host: Dict[str, Dict[int, Any]] = {}
        for rank, value in by_rank.items():
            by_host.setdefault(self._seats[rank].host, {})[rank] = value
        arguments = {host: (values,) for host, values in by_host.items()}
        for host, answer in self._agents.ask(method, arguments, self._limits.answer).items():
            if answer.error:
                raise RanksFailed("arrive", f"{host}: {answer.error}")


def _furthest(events: Sequence[Mapping[str, Any]]) -> Tuple[str, str, str]:
    """Phase, backend and error of a rank that told these."""
    phase, backend, error = "started", "", ""
    for event in events:
        if event["phase"] in _ORDER:
            phase, backend = event["phase"], event.get("backend", backend)
        elif event["phase"] == "error":
            error = str(event.get("text", ""))
        elif not error:
            error = f"its process ended with status {event.get('status')}"
    return phase, backend, error
