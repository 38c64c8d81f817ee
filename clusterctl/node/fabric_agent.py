"""The gate's process on a node, started by Ray: it reports its environment and runs the ranks.

Ranks are separate processes with the environment of Ray's worker on this node, which is the one
that vLLM's workers get. This process only waits for them, so it answers even if a rank hangs.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence

from clusterctl.node.fabric_documents import RankReport, SeenNode
from clusterctl.node.ray_watch import own_argv

# Prefixes of the variables that select interfaces and transports. None of them holds a secret.
_FABRIC_VARIABLES = ("NCCL_", "GLOO_", "VLLM_HOST_IP")

_TAIL = 30
_LOG_LINES = 200
# Substrings of lines of NCCL's log to keep: interfaces and transports found and chosen, warnings.
_TELLING = ("NET/", "NET plugin", "Using network", " via ", "NVL[", "WARN", "NCCL version")

_GPU_MASK = "CUDA_VISIBLE_DEVICES"

# GRAPH is where NCCL logs whether GPUs of a host are connected by NVLink.
_NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}


@dataclass
class _RankProcess:
    """A rank's process, and the events that it has reported so far."""

    report: RankReport
    process: subprocess.Popen[str]
    log: Optional[Path] = None
    tail: Deque[str] = field(default_factory=lambda: collections.deque(maxlen=_TAIL))
    events: List[Dict[str, Any]] = field(default_factory=list)
    readers: List[threading.Thread] = field(default_factory=list)

    def follow(self) -> None:
        """Read the process's stdout and stderr, in two threads that end with it."""

        def read(stream: Any, take: Callable[[str], None]) -> None:
            with stream:
                for line in stream:
                    take(line.rstrip())

        def event(line: str) -> None:
            with contextlib.suppress(ValueError):
                self.events.append(json.loads(line))

        def words(line: str) -> None:
            self.tail.append(line[:500])

        for stream, take in ((self.process.stdout, event), (self.process.stderr, words)):
            reader = threading.Thread(target=read, args=(stream, take), daemon=True)
            reader.start()
            self.readers.append(reader)

    def end(self) -> None:
        """Send SIGKILL: a rank may hang in a library. A rank that hangs in a driver remains."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        with contextlib.suppress(OSError):  # flushing orders that the rank never read
            if self.process.stdin:
                self.process.stdin.close()
        self.drain()

    def drain(self) -> None:
        """Wait until the readers have drained an ended rank's pipes."""
        for reader in self.readers:
            reader.join(1)


def _given_environment() -> Dict[str, str]:
    """Return this process's environment, with the container's CUDA_VISIBLE_DEVICES.

    Ray hides GPUs from a process that reserved none, and this one reserves none so that the gate
    also works on a cluster that serves. Ray changes only the variables of the running process:
    /proc still has the original ones.
    """
    text = Path("/proc/self/environ").read_text(errors="replace")
    started = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    env = {name: value for name, value in os.environ.items() if name != _GPU_MASK}
    return {**env, _GPU_MASK: started[_GPU_MASK]} if _GPU_MASK in started else env


class Agent:
    """One node's part of the gate. Its methods return within seconds, even if a rank hangs."""

    def __init__(
        self,
        host: str,
        *,
        argv: Optional[Sequence[str]] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._host = host
        self._argv = list(argv) if argv is not None else [*own_argv(), "fabric-rank"]
        self._env = dict(_given_environment() if env is None else env)
        self._ranks: Dict[int, _RankProcess] = {}

    def look(self) -> SeenNode:
        """Report the variables that select interfaces and transports."""
        names = sorted(name for name in self._env if name.startswith(_FABRIC_VARIABLES))
        return SeenNode(self._host, {name: self._env[name] for name in names})

    def launch(self, devices: Mapping[int, int]) -> None:
        """Start the ranks of this node. `devices` maps each rank to its GPU, or to -1."""
        for rank, device in devices.items():
            self._ranks[rank] = self._start(rank, device)

    def _start(self, rank: int, device: int) -> _RankProcess:
        env, log = dict(self._env), None
        if device >= 0:
            log = Path(tempfile.mkdtemp(prefix="fabric-")) / "nccl.log"
            env.update(_NCCL_LOG, NCCL_DEBUG_FILE=str(log))
        process = subprocess.Popen(
            self._argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        started = _RankProcess(RankReport(rank, self._host, device, "started"), process, log)
        started.follow()
        return started

    def order(self, orders: Mapping[int, Mapping[str, Any]]) -> None:
        """Send orders to ranks; a rank that has ended is skipped, and `hear` reports it."""
        for rank, order in orders.items():
            stdin = self._ranks[rank].process.stdin
            with contextlib.suppress(OSError):
                if stdin:
                    stdin.write(json.dumps(order) + "\n")
                    stdin.flush()

    def hear(self) -> Dict[int, List[Dict[str, Any]]]:
        """Return every event that each rank has reported, with a final `ended` event if its process
        has exited."""
        heard = {}
        for rank, one in self._ranks.items():
            status = one.process.poll()
            if status is not None:  # its last event is the reason why it ended
                one.drain()
            gone = [] if status is None else [{"phase": "ended", "status": status}]
            heard[rank] = [*one.events, *gone]
        return heard

    def stop_ranks(self) -> List[RankReport]:
        """End all ranks, and return the last lines of stderr and NCCL's log of each."""
        reports = []
        for one in self._ranks.values():
            one.end()
            reports.append(replace(one.report, tail=list(one.tail), log=_telling_lines(one.log)))
        self._ranks = {}
        return reports

    def close(self) -> None:
        self.stop_ranks()


def _telling_lines(log: Optional[Path]) -> List[str]:
    """Return the log lines that matter to users, and remove the file."""
    if log is None:
        return []
    lines: List[str] = []
    with contextlib.suppress(OSError):
        text = log.read_text(errors="replace")
        lines = [line[:300] for line in text.splitlines() if any(word in line for word in _TELLING)]
        log.unlink()
        log.parent.rmdir()
    return list(dict.fromkeys(lines))[:_LOG_LINES]
