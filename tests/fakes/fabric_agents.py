"""The gate's agents in this process, each with a loopback address of its own, without Ray."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.node.documents import ExpectedNode
from clusterctl.node.fabric_agent import Agent
from clusterctl.node.fabric_documents import FabricSpec, GpuBackend, RankReport
from clusterctl.node.fabric_gate import AgentAnswer

FAKE_RANK = Path(__file__).parent / "node_programs" / "fake_rank.py"
HANGS = "it hangs from here on"
"""The last line that a rank which hangs writes for people."""


def spec(*hosts: str, gpus: int = 0) -> FabricSpec:
    """Nodes at 127.0.0.11, .12, ..."""
    nodes = [ExpectedNode(host, f"127.0.0.{11 + n}", gpus) for n, host in enumerate(hosts)]
    return FabricSpec(nodes, GpuBackend("cuda", "nccl") if gpus else GpuBackend())


class Attentive(Agent):
    """Hears its ranks out: what the gate learns at one look does not depend on their speed."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._joining: set[int] = set()

    def order(self, orders: Mapping[int, Mapping[str, Any]]) -> None:
        super().order(orders)
        self._joining |= {rank for rank, order in orders.items() if order["do"] == "join"}

    def hear(self) -> dict[int, list[dict[str, Any]]]:
        while not all(self._told_all(rank) for rank in self._joining & self._ranks.keys()):
            time.sleep(0.005)
        return super().hear()

    def _told_all(self, rank: int) -> bool:
        one = self._ranks[rank]
        last = one.events[-1]["phase"] if one.events else ""
        ended = one.process.poll() is not None
        return ended or last in {"done", "error"} or HANGS in one.tail

    def stop_ranks(self) -> list[RankReport]:
        self._joining = set()
        return super().stop_ranks()


def agent(node: ExpectedNode, kind: type[Agent] = Attentive, **env: str) -> Agent:
    return kind(
        node.host,
        argv=[sys.executable, str(FAKE_RANK)],
        env={"GLOO_SOCKET_IFNAME": "fab0", "NCCL_SOCKET_IFNAME": "=fab0", **env},
    )


class LocalAgents:
    """Fulfils `Agents`; a host in `silent` never answers."""

    def __init__(self, agents: Mapping[str, Agent], silent: Sequence[str] = ()) -> None:
        self.agents = agents
        self.asked: list[str] = []
        self._silent = silent

    def ask(
        self, method: str, arguments: Mapping[str, Sequence[Any]], within: float
    ) -> dict[str, AgentAnswer]:
        self.asked.append(method)
        found: dict[str, AgentAnswer] = {}

        def one(host: str) -> None:
            found[host] = AgentAnswer(getattr(self.agents[host], method)(*arguments[host]))

        asked = [host for host in arguments if host not in self._silent]
        threads = [threading.Thread(target=one, args=(host,)) for host in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(within)
        return {host: found.get(host, AgentAnswer(error="does not answer")) for host in arguments}
