"""The gate's access to the nodes: a Ray actor on each, started like vLLM's workers."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from clusterctl.node import timing
from clusterctl.node.documents import ExpectedNode, from_json
from clusterctl.node.fabric_documents import FabricReport, FabricSpec
from clusterctl.node.fabric_gate import AgentAnswer, Gate


def main() -> int:
    """Read a FabricSpec from stdin, run the gate, and write JSON lines to stdout.

    Exits when stdin ends: the caller is gone.
    """
    spec = from_json(FabricSpec, sys.stdin.readline())
    gate: Optional[Gate] = None  # None until Ray is joined

    def end_with_stdin() -> None:
        sys.stdin.read()
        os._exit(3)

    def enforce_limit() -> None:
        """End this process after timing.GATE seconds, with a report of what is known by then."""
        limit = timing.GATE
        time.sleep(limit)
        joining = FabricReport(limit, failed="time", error=f"{limit:g} s (joining Ray)")
        _tell({"report": asdict(gate.so_far(limit) if gate else joining)})
        os._exit(4)

    for work in (end_with_stdin, enforce_limit):
        threading.Thread(target=work, daemon=True).start()
    try:
        agents = RayAgents(spec.nodes)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        _tell({"report": asdict(FabricReport(0.0, failed="gate", error=text[:2000]))})
        return 0
    gate = Gate(spec, agents, say=lambda text: _tell({"say": text}))
    _tell({"report": asdict(gate.run())})
    os._exit(0)  # Ray's shutdown takes a second; its actors end with this process


def _tell(line: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")  # one write per line: several threads write
    sys.stdout.flush()


class RayAgents:
    """An `Agent` in a Ray actor on every node. Actors reserve no resources, so that the gate also
    works on a cluster whose GPUs are serving."""

    def __init__(self, nodes: Sequence[ExpectedNode]) -> None:
        """Raise what Ray raises if the cluster cannot be joined."""
        self._ray: Any = importlib.import_module("ray")
        self._ray.init(
            address=os.environ.get("RAY_ADDRESS", "auto"),
            log_to_driver=False,
            logging_level="error",
            include_dashboard=False,
        )
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        ids = {row["NodeName"]: row["NodeID"] for row in self._ray.nodes() if row["Alive"]}
        self._absent = {node.host: "it is not in Ray" for node in nodes if node.host not in ids}
        self._actors: Dict[str, Any] = {}
        for host in (node.host for node in nodes if node.host in ids):
            options = self._ray.remote(_envoy()).options(
                num_cpus=0,
                num_gpus=0,
                max_concurrency=8,
                scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(
                    ids[host], soft=False
                ),
            )
            # The path is where this package is imported from.
            self._actors[host] = options.remote(str(Path(__file__).parents[2]), host)

    def ask(
        self, method: str, arguments: Mapping[str, Sequence[Any]], within: float
    ) -> Dict[str, AgentAnswer]:
        """Implement `Agents.ask`."""
        asked = {
            host: self._actors[host].call.remote(method, list(given))
            for host, given in arguments.items()
            if host in self._actors
        }
        self._ray.wait(list(asked.values()), num_returns=max(1, len(asked)), timeout=within)
        found = {host: AgentAnswer(error=error) for host, error in self._absent.items()}
        for host, ref in asked.items():
            try:
                found[host] = AgentAnswer(self._ray.get(ref, timeout=0.01))
            except self._ray.exceptions.GetTimeoutError:
                late = f"a process that Ray starts there does not answer in {within:g} s"
                found[host] = AgentAnswer(error=late)
            except Exception as error:
                found[host] = AgentAnswer(error=f"{type(error).__name__}: {error}"[:1000])
        return {host: found[host] for host in arguments}


def _envoy() -> Any:
    """Return the actor's class. It is defined inside a function so that Ray pickles it by value: a
    node then needs only node.pyz, which is at the same path on every node."""

    class Envoy:
        def __init__(self, program: str, host: str) -> None:
            sys.path.insert(0, program)
            agents: Any = importlib.import_module("clusterctl.node.fabric_agent")
            self._agent = agents.Agent(host)

        def call(self, method: str, given: List[Any]) -> Any:
            return getattr(self._agent, method)(*given)

    return Envoy
