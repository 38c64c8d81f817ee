"""The ranks of one all-reduce, over all nodes or some: start them, send orders, await results."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Protocol, Sequence, Tuple

from clusterctl.node.fabric_documents import Collective, FabricSpec, RankReport
from clusterctl.node.timing import GateTiming

Heard = Dict[int, List[Dict[str, Any]]]

_ORDER = ("started", "imported", "store", "joined", "correct", "measured", "done")


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


class RanksFailed(Exception):
    """Ranks did not reach a phase in time, or reported an error."""

    def __init__(self, step: str, error: str) -> None:
        super().__init__(error)
        self.step = step
        self.error = error


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
    def __init__(self, spec: FabricSpec, agents: Agents, limits: GateTiming) -> None:
        self._agents = agents
        self._limits = limits
        self._seats = seats(spec)
        self._backend = spec.gpu_backend
        self._gpus = [seat.rank for seat in self._seats if seat.device >= 0]
        self._heard: Heard = {}
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
        self._ask(
            "order",
            {
                seat.rank: {
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
                for seat in self._seats
            },
        )

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
        if self._stopped:
            return self._stopped
        hosts = {seat.host: () for seat in self._seats}
        answers = self._agents.ask("stop_ranks", hosts, self._limits.answer)
        told = [one for answer in answers.values() for one in answer.value or ()]
        for one in sorted(told, key=lambda one: one.rank):
            events = self._heard.get(one.rank, [])
            phase, backend, error = _furthest(events)
            ended = any(event["phase"] == "ended" for event in events)
            self._stopped.append(
                replace(one, phase=phase, backend=backend, error=error, ended=ended)
            )
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
        """Poll until these ranks report `phase`. Raises RanksFailed if a rank reports an error, if
        its process has ended, and after `within` seconds."""
        self._wanted = (ranks, phase, backend)
        hosts = {seat.host: () for seat in self._seats}
        deadline = time.monotonic() + within
        while True:
            for host, answer in self._agents.ask("hear", hosts, self._limits.answer).items():
                if answer.error:
                    raise RanksFailed(step, f"{host}: {answer.error}")
                self._heard.update(answer.value)
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

    def _ask(self, method: str, by_rank: Mapping[int, Any]) -> None:
        by_host: Dict[str, Dict[int, Any]] = {}
        for rank, value in by_rank.items():
            by_host.setdefault(self._seats[rank].host, {})[rank] = value
        arguments = {host: (values,) for host, values in by_host.items()}
        for host, answer in self._agents.ask(method, arguments, self._limits.answer).items():
            if answer.error:
                raise RanksFailed("arrive", f"{host}: {answer.error}")


def _furthest(events: Sequence[Mapping[str, Any]]) -> Tuple[str, str, str]:
    """Return the phase and backend that a rank has reached, and its error ("" if none)."""
    phase, backend, error = "started", "", ""
    for event in events:
        if event["phase"] in _ORDER:
            phase, backend = event["phase"], event.get("backend", backend)
        elif event["phase"] == "error":
            error = str(event.get("text", ""))
        elif not error:
            error = f"its process ended with status {event.get('status')}"
    return phase, backend, error
