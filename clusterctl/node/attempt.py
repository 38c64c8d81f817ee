"""One run of a service's process: the process, its log, and the watch over its endpoint."""

from __future__ import annotations

import os
import re
import time
from typing import Dict, FrozenSet, List, Mapping, Optional, Tuple

from clusterctl.node.adapters import Adapters, takes_adapters
from clusterctl.node.children import Child, has_threads, is_alive
from clusterctl.node.documents import MOST_PINNED, Rank, ServiceDocument
from clusterctl.node.endpoint import EndpointWatch, LocalApi, Reading
from clusterctl.node.files import NodePaths
from clusterctl.node.first_token import MIDDLEWARE
from clusterctl.node.import_ahead import ImportAhead, StartCommand
from clusterctl.node.rank_placement import BESIDE, placement_env
from clusterctl.node.ray_watch import Snapshot, WorkerActor
from clusterctl.node.secret_files import mark
from clusterctl.node.sleeping import DESCRIPTOR, SleepControl
from clusterctl.node.sleeping import MIDDLEWARE as HOLDING
from clusterctl.node.timing import Timing
from clusterctl.node.vllm_plugins import plugin_env

ARGPARSE_STATUS = 2  # Exit status of argparse, and so of `vllm serve`, when it rejects arguments

# Seconds to read the rest of argparse's message. No child runs yet that could hold the pipe open.
REFUSAL_LIMIT = 10.0

# What vLLM before 0.29 adds to VLLM_DP_MASTER_PORT for the store of torch.distributed, also of a
# service without data parallelism (`_select_tcpstore_port` in v1/executor/ray_executor_v2.py of
# 0.25.1). With its default of 0 all look for a free port from 100 on, and two that start together
# take the same (vllm pull request 53666). Since 0.29 the store has a port that the kernel chooses.
STORE_OFFSET = 100

STAGES = ("ray", "ranks", "weights", "kv-cache", "graphs", "warm-up", "listening")

# Substrings of log lines of vLLM 0.7 to 0.33, where they agree.
MARKS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("ray", ("Connecting to existing Ray cluster", "Connected to Ray cluster", "placement group")),
    ("ranks", ("distributed_init_method=", "is assigned as DP rank")),
    ("weights", ("Starting to load model", "Loading safetensors", "Loading weights took",
                 "Loading model from scratch", "downloading weights",
                 "Loading model weights", "Model loading took")),
    ("kv-cache", ("torch.compile", "Dynamo bytecode", "Available KV cache memory",
                  "KV cache size", "Maximum concurrency for", "Memory profiling")),
    ("graphs", ("Capturing CUDA graph", "Capturing cudagraphs")),
    # After the graphs, vLLM compiles Triton's kernels, such as the sampler's, and logs nothing.
    ("warm-up", ("Graph capturing finished", "init engine (profile", "Compile and warming up",
                 "Warming up", "warm up")),
    ("listening", ("Starting vLLM", "Uvicorn running on", "Application startup complete")),
)  # fmt: skip

# Logged by a rank that builds its model. With random weights this is the first sign of loading.
_BUILDS_MODEL = re.compile(r"^\(RayWorker.*Using \S+( attention)? backend", re.IGNORECASE)

# Log lines that mention a stage in a setting, although that stage is never reached.
_MISLEADING = ("Enforce eager set",)

# Read like an error to whoever waits, and are logged by every start.
_ALARMING = ("No current placement group found",)

# What vLLM 0.12 to 0.33 log when an engine or a rank is gone, or a signal told one to end. The API
# server ends by itself then, with status 0 and as if all were well.
_GONE = ("died unexpectedly", "exited unexpectedly", "encountered a fatal error", "EngineDeadError")
_TOLD = ("API server: shutdown triggered", "EngineCore: trigger received signal=")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_PREFIX = re.compile(r"^(\([^)]*\)\s*|(DEBUG|INFO|WARNING)\s+[\d-]+\s+[\d:.]+\s*|\[[^\]]*\]\s*)+")


def stage_of(line: str) -> Optional[str]:
    """Return the stage of start-up that a log line of vLLM shows, if any."""
    if any(words in line for words in _MISLEADING):
        return None
    for stage, marks in MARKS:
        if any(mark in line for mark in marks):
            return stage
    return "weights" if _BUILDS_MODEL.search(_COLOURS.sub("", line)) else None


def later(current: str, found: str) -> str:
    """Return the later of two stages: workers on other hosts log late, but stages never go back."""
    if current not in STAGES:
        return found
    return STAGES[max(STAGES.index(current), STAGES.index(found))]


def plain(line: str) -> str:
    """Return a log line without process, time and colours, at most 160 characters; "" for one that
    only looks like an error."""
    if any(words in line for words in _ALARMING):
        return ""
    return _PREFIX.sub("", _COLOURS.sub("", line)).strip()[:160]


class Attempt:
    """One started process of a service. The constructor raises OSError if it cannot be started."""

    def __init__(
        self,
        document: ServiceDocument,
        env: Mapping[str, str],
        paths: NodePaths,
        timing: Timing,
        nodes: FrozenSet[str],
        key: str,
        node_ip: str = "",
        store_port: int = 0,
        ahead: Optional[ImportAhead] = None,
        *,
        beside: bool = False,
    ) -> None:
        """`nodes`: IDs of the Ray nodes that its ranks may be on and that are alive when the
        process starts. `key`: what requests must present; without one, vLLM answers everyone.
        `node_ip`: of this host. `store_port`: for the store of torch.distributed. `ahead`: may have
        a process to use. `beside`: another engine has memory of its GPUs."""
        self.document = document
        self.nodes = nodes
        self._node_ip = node_ip
        self._timing = timing
        self._killed = 0.0
        self._seen: Dict[str, WorkerActor] = {}  # Ranks, by name, of one of two
        self.started = time.monotonic()
        self.was_ready = False
        self.placed: List[Rank] = []  # As the journal has it
        self.hung: Optional[Tuple[float, str]] = None  # Until when evidence is taken, and why
        self._ranks: Dict[str, WorkerActor] = {}  # Ranks seen since it was ready, by name
        # The rank that ended while others ran; empty if there is none, or all ended together
        self.lost_rank = ""
        self._missed: Optional[Tuple[float, List[WorkerActor]]] = None  # The first ranks, and when
        self._listed = self.started  # When Ray listed all ranks last
        self.stage = ""
        self.stage_line = ""
        self._reached: Dict[str, float] = {}  # By stage, in order: when its first line came
        self._ending = ""  # The first line that tells why it ends
        self.sleeping = SleepControl() if document.sleeps else None
        sleeping = {DESCRIPTOR: str(self.sleeping.descriptor)} if self.sleeping else {}
        holding = ["--middleware", HOLDING] if self.sleeping else []
        store = {"VLLM_DP_MASTER_PORT": str(store_port - STORE_OFFSET)} if store_port else {}
        api = LocalApi(document.host, document.port, document.served_name, key, document.kind)
        self.adapters = Adapters(api, timing)
        takes = takes_adapters(document.argv)
        self.adapters.wanted = document.adapters if takes else {}
        argv = [
            *document.argv,
            "--middleware",
            MIDDLEWARE,
            *(self.adapters.argv if takes else []),
            *holding,
        ]
        environment = {
            **os.environ,
            # Ray prints the ranks' lines into a pipe: buffered, they would arrive only once 8
            # KiB are full, a minute late.
            "PYTHONUNBUFFERED": "1",
            **store,
            **env,
            **document.env,
            **plugin_env({**os.environ, **env, **document.env}),
            **placement_env(document),
            **({BESIDE: "1"} if beside else {}),
            **(self.adapters.env if takes else {}),
            **sleeping,
        }
        secrets = {**(self.adapters.secrets if takes else {}), "VLLM_API_KEY": key}
        self.command = StartCommand(argv, environment, key, secrets)
        process = ahead.take(self.command) if ahead else None
        self.imported = process is not None  # Before it started
        self.child = Child(
            argv,
            {**environment, **secrets},
            paths.log(document.name),
            self._read,
            [self.sleeping.descriptor] if self.sleeping else [],
            process,
        )
        if self.sleeping:
            self.sleeping.started()
        self.key = mark(key)
        self._watch = EndpointWatch(api, timing, self.adapters.follow)

    @property
    def reading(self) -> Reading:
        return self._watch.reading

    def look_again(self, occasion: float) -> None:
        """Have the metrics read now, once for each `occasion`: they may be seconds old."""
        self._watch.look_again(occasion)

    def progress(self) -> str:
        """Return the latest start-up stage reached, from the log and the endpoint."""
        return later(self.stage, self.reading.stage) if self.reading.stage else self.stage

    def spent(self, now: float) -> Dict[str, float]:
        """Return the seconds spent in each stage so far, in order; `imports` before the first."""
        seconds, stage, since = {}, "imports", self.started
        for following, at in self._reached.items():
            seconds[stage] = round(at - since, 1)
            stage, since = following, at
        seconds[stage] = round(now - since, 1)
        return seconds

    def refused_its_arguments(self) -> bool:
        """Return whether argparse rejected the arguments, so that retrying is useless."""
        if self.child.exit_status() != ARGPARSE_STATUS:
            return False
        self.child.drain(REFUSAL_LIMIT)
        return any("error: " in line for line in self.last_lines())

    def how_it_ended(self) -> str:
        """Return how the process, which has ended, ended, and why if it ended by itself."""
        status = self.child.exit_status() or 0
        if status:
            return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        self.child.drain()
        if any(words in self._ending for words in _TOLD):
            return "was told to end by a signal that is not clusterctl's"
        if self._ending:
            return f"ended by itself, as its engine did ({plain(self._ending)})"
        return "ended by itself, as it does when its engine is gone or a signal tells it to"

    def last_lines(self) -> List[str]:
        self.child.drain()
        return self.child.tail()[-20:]

    def owned(self, snapshot: Optional[Snapshot]) -> List[WorkerActor]:
        """Return the vLLM workers whose driver belongs to this attempt's session."""
        workers = snapshot.workers if snapshot else []
        own = [worker for worker in workers if self._drives(worker)]
        if self.document.takes_turns:
            self._seen.update((worker.name, worker) for worker in own)
        return own

    def ended_rank(self, snapshot: Optional[Snapshot], now: float, patience: float) -> str:
        """Name a rank that Ray no longer counts as alive, although vLLM has carried on without it
        for `patience` seconds; otherwise return an empty string.

        vLLM normally notices and ends by itself. Otherwise, requests hang in a collective that the
        rank will never join.
        """
        if self.document.takes_turns and (here := self._ended_here()):
            return here
        if snapshot is None or not self.was_ready:
            return ""
        for worker in self.owned(snapshot):
            self._ranks[worker.name] = worker
        there = {worker.name for worker in snapshot.workers}
        missing = [worker for name, worker in self._ranks.items() if name not in there]
        gone = [worker for worker in missing if self._drives(worker)]
        if not gone:
            self._missed, self.lost_rank = None, ""
            return ""
        # Those that are missing later may have been ended by vLLM because of the first
        since, first = self._missed = self._missed or (now, gone)
        self.lost_rank = self._told(first, snapshot) if len(first) < len(self._ranks) else ""
        return "" if now - since < patience else self._told(first, snapshot)

    def unwatched(self, listed: int, snapshot: Optional[Snapshot], now: float) -> str:
        """Say how many ranks Ray lists, if it has not listed all for `ranks_listed` seconds in
        which it answered: `ended_rank` knows no others."""
        if snapshot is None or not self.was_ready or listed >= self.document.gpus:
            self._listed = now
        if now - self._listed < self._timing.ranks_listed:
            return ""
        told = f"Ray lists {listed} of its {self.document.gpus} ranks"
        return f"{told}: if one ends, only vLLM can notice"

    def _ended_here(self) -> str:
        """Name a rank of this host whose process has ended, before Ray does."""
        ranks = self._ranks.values()
        here = [each.pid for each in ranks if each.node_ip == self._node_ip]
        gone = [pid for pid in here if not is_alive(pid)]
        if not gone:
            return ""
        others = "; one of another host may have ended first"
        told = f"a rank ended on this host (process {gone[0]})"
        return told + others if len(here) < self.document.gpus else told

    def let_go(self, now: float, snapshot: Optional[Snapshot], taken: float) -> bool:
        """Return whether its ranks have ended, after `kill`: their GPUs have no memory of them.
        `taken`: monotonic seconds of the snapshot."""
        spent, ranks = now - self._killed, self._seen.values()
        if spent > self._timing.memory_stuck:
            return True
        here = [each for each in ranks if each.node_ip == self._node_ip]
        if not self.child.gone() or any(has_threads(each.pid) for each in here):
            return False
        all_here = len(here) == self.document.gpus
        if all_here and self.was_ready:
            return True
        # Ranks that started after the last snapshot are not known, and those of other hosts not
        # seen: Ray lists them until they are gone.
        workers = snapshot.workers if snapshot and taken > self._killed else None
        if workers is None or any(self._is_orphan(each) for each in workers):
            return False
        pinned = MOST_PINNED * self.document.parked_gib
        freed = self._timing.memory_freed + self._timing.memory_freed_per_gib * pinned
        return all_here or spent > freed

    def _is_orphan(self, worker: WorkerActor) -> bool:
        ours = worker.driver_ip in ("", self._node_ip)
        return ours and worker.driver_pid > 0 and not is_alive(worker.driver_pid)

    @staticmethod
    def _told(first: List[WorkerActor], snapshot: Snapshot) -> str:
        names = {node.node_id: node.name for node in snapshot.nodes}
        hosts = sorted({names.get(worker.node_id) or worker.node_ip for worker in first})
        if len(hosts) > 1:
            return f"ranks ended on {', '.join(hosts)}"
        return f"a rank ended on {hosts[0]} (process {first[0].pid})"

    def terminate(self) -> None:
        self._watch.stop()
        self.child.terminate()

    def kill(self) -> None:
        self._watch.stop()
        self._killed = time.monotonic()
        self.child.kill_all()
        if self.sleeping:
            self.sleeping.close()

    def _drives(self, worker: WorkerActor) -> bool:
        """Return whether the worker's driver is a process of this attempt's session."""
        if worker.driver_ip not in ("", self._node_ip):
            return False  # A container on another host may have a process of that pid
        try:
            return worker.driver_pid > 0 and os.getsid(worker.driver_pid) == self.child.pid
        except OSError:
            return False

    def _read(self, line: str) -> None:
        if not self._ending and any(words in line for words in (*_GONE, *_TOLD)):
            self._ending = line
        if self.sleeping:
            self.sleeping.heard(line)
        stage = stage_of(line)
        if stage:
            self.stage = later(self.stage, stage)
            self._reached.setdefault(self.stage, time.monotonic())
            self.stage_line = plain(line)
