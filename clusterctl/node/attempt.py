"""One run of a service's process: the process, its log, the watch over its endpoint."""

from __future__ import annotations

import os
import time
from typing import Dict, FrozenSet, List, Mapping, Optional

from clusterctl.node import stages
from clusterctl.node.children import Child
from clusterctl.node.documents import ServiceDocument
from clusterctl.node.endpoint import Endpoint
from clusterctl.node.endpoint_watch import EndpointWatch, Reading
from clusterctl.node.paths import NodePaths
from clusterctl.node.ray_watch import Snapshot, WorkerActor
from clusterctl.node.timing import Timing

ARGPARSE_STATUS = 2  # What argparse, and so `vllm serve`, ends with when it refuses its arguments

# Seconds for its words on that. Nothing else is running yet that could hold its output open.
REFUSAL_LIMIT = 10.0


class Attempt:
    """Begins with the process. Raises OSError when it cannot be started."""

    def __init__(
        self,
        document: ServiceDocument,
        env: Mapping[str, str],
        paths: NodePaths,
        timing: Timing,
        nodes: FrozenSet[str],
    ) -> None:
        """`nodes`: ids of the Ray nodes that lived when it began."""
        self.document = document
        self.nodes = nodes
        self.started = time.monotonic()
        self.was_ready = False
        self._ranks: Dict[str, WorkerActor] = {}
        self._rank_missed: Optional[float] = None
        self.stage = ""
        self.stage_line = ""
        key = _read_key(paths)
        self._child = Child(
            document.argv,
            {**os.environ, **env, **document.env, **({"VLLM_API_KEY": key} if key else {})},
            paths.log(document.name),
            self._read,
        )
        self._watch = EndpointWatch(
            Endpoint(document.host, document.port, document.served_name, key), timing
        )
        self._watch.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def reading(self) -> Reading:
        return self._watch.reading

    @property
    def ended(self) -> bool:
        """The leader ended; others of its session may linger."""
        return self._child.exit_status() is not None

    @property
    def gone(self) -> bool:
        return self._child.gone()

    def progress(self) -> str:
        """The stage it is in."""
        return stages.later(self.stage, self.reading.stage) if self.reading.stage else self.stage

    def how_it_ended(self) -> str:
        status = self._child.exit_status()
        if status is None:
            return "still runs"
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"

    def refused_its_arguments(self) -> bool:
        """It can never start with this document: trying again changes nothing."""
        if self._child.exit_status() != ARGPARSE_STATUS:
            return False
        self._child.settle(REFUSAL_LIMIT)
        return any("error: " in line for line in self.last_lines())

    def last_lines(self) -> List[str]:
        self._child.settle()
        return self._child.tail()[-20:]

    def owned(self, snapshot: Optional[Snapshot]) -> List[WorkerActor]:
        """The vLLM workers whose driver is in this attempt's session."""
        workers = snapshot.workers if snapshot else []
        return [worker for worker in workers if _session_of(worker.driver_pid) == self.pid]

    def ended_rank(self, snapshot: Optional[Snapshot], now: float, patience: float) -> str:
        """A rank that Ray has counted among the living since the service was ready, and no longer
        does, while vLLM goes on without it for `patience` seconds; or nothing.

        vLLM ends by itself when it notices. It does not always: requests then hang in a
        collective that the rank will never join.
        """
        if snapshot is None or not self.was_ready:
            return ""
        for worker in self.owned(snapshot):
            self._ranks[worker.name] = worker
        there = {worker.name for worker in snapshot.workers}
        gone = [
            worker
            for name, worker in self._ranks.items()
            if name not in there and _session_of(worker.driver_pid) == self.pid
        ]
        if not gone:
            self._rank_missed = None
            return ""
        if self._rank_missed is None:
            self._rank_missed = now
        if now - self._rank_missed < patience:
            return ""
        host = {node.node_id: node.name for node in snapshot.nodes}.get(gone[0].node_id, "")
        return f"a rank ended on {host or gone[0].node_ip} (process {gone[0].pid})"

    def terminate(self) -> None:
        self._watch.stop()
        self._child.terminate()

    def kill(self) -> None:
        self._watch.stop()
        self._child.kill_all()

    def _read(self, line: str) -> None:
        stage = stages.stage_of(line)
        if stage:
            self.stage = stages.later(self.stage, stage)
            self.stage_line = stages.plain(line)


def _read_key(paths: NodePaths) -> str:
    """The API key, or nothing where none was made."""
    try:
        return paths.api_key.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid) if pid else -1
    except OSError:
        return -1
