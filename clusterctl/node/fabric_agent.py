"""The gate's process on a node: started by Ray, it listens, connects, and looks after the ranks.

Ranks are processes of their own, which have the environment that Ray's worker has here, and so
the one that vLLM's workers get. This process only waits on them, and so answers whatever hangs.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence

from clusterctl.node.fabric_crossing import Echo, cross_all
from clusterctl.node.fabric_documents import Crossing, Place, RankReport, SeenNode
from clusterctl.node.fabric_nics import Interface, interfaces, places, telling

_TAIL = 30
_LOG_LINES = 200
# What is kept of NCCL's log: which interfaces and transports it found and took, and complaints.
_TELLING = ("NET/", "NET plugin", "Using network", " via ", "NVL[", "WARN", "NCCL version")

_GPU_MASK = "CUDA_VISIBLE_DEVICES"

# The graph is where NCCL writes whether GPUs of a host are joined by NVLink.
_NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}


@dataclass
class _Listening:
    place: Place
    echo: Echo


@dataclass
class _Process:
    """A rank: its process and what it told so far."""

    report: RankReport
    process: subprocess.Popen[str]
    log: Optional[Path] = None
    tail: Deque[str] = field(default_factory=lambda: collections.deque(maxlen=_TAIL))
    events: List[Dict[str, Any]] = field(default_factory=list)
    readers: List[threading.Thread] = field(default_factory=list)

    def follow(self) -> None:
        """Two threads read what it writes; both end with it."""
        assert self.process.stdout  # noqa: S101 - a pipe
        assert self.process.stderr  # noqa: S101 - a pipe
        for stream, take in ((self.process.stdout, self._event), (self.process.stderr, self._line)):
            reader = threading.Thread(target=_each_line, args=(stream, take), daemon=True)
            reader.start()
            self.readers.append(reader)

    def end(self) -> None:
        """SIGKILL: a rank may hang in a library. One that hangs in a driver is left behind."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        with contextlib.suppress(OSError):  # what it never read of its orders
            if self.process.stdin:
                self.process.stdin.close()
        self.settle()

    def settle(self) -> None:
        """Take in what an ended rank still had in its pipes."""
        for reader in self.readers:
            reader.join(1)

    def _event(self, line: str) -> None:
        with contextlib.suppress(ValueError):
            self.events.append(json.loads(line))

    def _line(self, line: str) -> None:
        self.tail.append(line[:500])


def rank_argv() -> List[str]:
    """What runs a rank: this package again, by the Python that runs this."""
    origin = Path(__file__).parents[2]
    if origin.is_file():
        return [sys.executable, str(origin), "fabric-rank"]
    return [sys.executable, "-m", "clusterctl.node", "fabric-rank"]


def _given_environment() -> Dict[str, str]:
    """This process's environment, with the GPUs that its container has. Ray hides them from a
    process that reserved none (this one reserves none, so that a cluster that serves can be
    looked at), but in the running process alone: /proc has what it was started with."""
    text = Path("/proc/self/environ").read_text(errors="replace")
    started = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    env = {name: value for name, value in os.environ.items() if name != _GPU_MASK}
    return {**env, _GPU_MASK: started[_GPU_MASK]} if _GPU_MASK in started else env


class Agent:
    """One node's part. Its methods return within seconds, whatever happens."""

    def __init__(
        self,
        host: str,
        *,
        argv: Optional[Sequence[str]] = None,
        found: Callable[[], List[Interface]] = interfaces,
        env: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._host = host
        self._argv = list(argv) if argv is not None else rank_argv()
        self._found = found
        self._env = dict(_given_environment() if env is None else env)
        self._echoes: List[_Listening] = []
        self._ranks: Dict[int, _Process] = {}

    def look(self, node_ip: str) -> SeenNode:
        """What is there: environment, interfaces, and which of them must be reached."""
        found = self._found()
        return SeenNode(
            host=self._host,
            env=telling(self._env),
            interfaces={one.name: list(one.addresses) for one in found},
            places=places(self._env, node_ip, found),
        )

    def listen(self, wanted: Sequence[Place]) -> List[Crossing]:
        """A listener on each place; what others are to try. A place that cannot be bound has an
        error already."""
        return [self._listen(place) for place in wanted]

    def _listen(self, place: Place) -> Crossing:
        port, error = 0, ""
        try:
            echo = Echo(self._host, place.ip)
            self._echoes.append(_Listening(place, echo))
            port = echo.port
        except OSError as failure:
            error = f"cannot listen there: {failure.strerror or failure}"
        return Crossing("", self._host, place.purpose, place.nic, place.ip, port, error)

    def cross(self, targets: Sequence[Crossing]) -> List[Crossing]:
        """Connect to all of them at once."""
        return cross_all([replace(target, source=self._host) for target in targets])

    def launch(self, devices: Mapping[int, int]) -> None:
        """Start the ranks that live here: rank: device (-1 without a GPU)."""
        for rank, device in devices.items():
            self._ranks[rank] = self._start(rank, device)

    def _start(self, rank: int, device: int) -> _Process:
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
        started = _Process(RankReport(rank, self._host, device, "started"), process, log)
        started.follow()
        return started

    def order(self, orders: Mapping[int, Mapping[str, Any]]) -> None:
        """Tell ranks what to do; one that has ended is found by `hear`."""
        for rank, order in orders.items():
            stdin = self._ranks[rank].process.stdin
            with contextlib.suppress(OSError):
                if stdin:
                    stdin.write(json.dumps(order) + "\n")
                    stdin.flush()

    def hear(self) -> Dict[int, List[Dict[str, Any]]]:
        """All that each rank told so far; an `ended` comes last when its process is gone."""
        heard = {}
        for rank, one in self._ranks.items():
            status = one.process.poll()
            if status is not None:  # why it ended is the last that it told
                one.settle()
            gone = [] if status is None else [{"phase": "ended", "status": status}]
            heard[rank] = [*one.events, *gone]
        return heard

    def stop_ranks(self) -> List[RankReport]:
        """End them all, and what there is to say of each: the end of stderr, NCCL's log."""
        told = []
        for one in self._ranks.values():
            one.end()
            told.append(replace(one.report, tail=list(one.tail), log=_telling_lines(one.log)))
        self._ranks = {}
        return told

    def close(self) -> None:
        self.stop_ranks()
        for one in self._echoes:
            one.echo.close()
        self._echoes = []


def _each_line(stream: Any, take: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            take(line.rstrip())


def _telling_lines(log: Optional[Path]) -> List[str]:
    """The log's lines without what only debuggers read; the file goes."""
    if log is None:
        return []
    lines: List[str] = []
    with contextlib.suppress(OSError):
        text = log.read_text(errors="replace")
        lines = [line[:300] for line in text.splitlines() if any(word in line for word in _TELLING)]
        log.unlink()
        log.parent.rmdir()
    return list(dict.fromkeys(lines))[:_LOG_LINES]
