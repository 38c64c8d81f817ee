"""Node states from Ray's GCS: the process that queries it, and the supervisor's side of it.

`watch` runs in a separate process, since Ray's C++ client ends its process when the GCS stays away,
and the supervisor must not end with it: it imports no Ray.

It uses `ray._private.state.GlobalState`, which needs neither a dashboard nor a driver that
registers a job, and answers in milliseconds (2.60: 8 ms; `ray list nodes` takes 4 s).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping, Optional

from clusterctl.node.children import Child
from clusterctl.node.documents import RayNode, from_json
from clusterctl.node.files import read_file
from clusterctl.node.timing import Backoff, Timing

# Labels that the supervisor passes to `ray start`: the GCS keeps no version per node.
VERSION_LABELS = ("ray-version", "python-version")

WORKER_PREFIX = "vllm_Worker_"
# Of those that vLLM gives no name, with its earlier executor for Ray, RayDistributedExecutor (since
# 0.25 only with VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0). The actor's ID follows.
UNNAMED = f"{WORKER_PREFIX}unnamed_"
_UNNAMED_CLASS = "RayWorkerWrapper"


@dataclass(frozen=True)
class WorkerActor:
    """A live vLLM worker. `name`: vllm_Worker_INSTANCE[_dpi][_TPj][_PPk], or UNNAMED and an ID."""

    name: str
    node_id: str
    node_ip: str
    pid: int
    driver_pid: int  # The process that owns it, on the host of `driver_ip`
    driver_ip: str = ""  # Empty: of this host


@dataclass(frozen=True)
class Snapshot:
    """The GCS's answer at one moment, or the error of asking it."""

    time: float  # Unix seconds
    nodes: List[RayNode] = field(default_factory=list)
    workers: List[WorkerActor] = field(default_factory=list)
    error: str = ""
    asked: str = ""  # What a supervisor asks of all (node/evidence.py)
    gateway: str = ""  # SharedGateway, as the head told it; empty: it told nothing


_NAMESPACE = b"clusterctl"  # In the GCS's store of keys and values
_LONGEST_ASKED, _LONGEST_GATEWAY = 2**16, 2**23  # Bytes
_GATEWAY_EVERY = 0.5  # Seconds: a key is revoked on all gateways within 2 s


def gcs_state(address: str) -> Any:
    """Return Ray's `GlobalState` of the GCS at `address`, which reads its tables."""
    raylet: Any = importlib.import_module("ray._raylet")
    private_state: Any = importlib.import_module("ray._private.state")
    state = private_state.GlobalState()
    options = raylet.GcsClientOptions.create(
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    state._initialize_global_state(options)  # noqa: SLF001
    return state


def watch(
    address: str, interval: float, asked: Optional[Path] = None, gateway: Optional[Path] = None
) -> None:
    """Print a snapshot as a JSON line every `interval` seconds, until stdout is closed. The file
    `asked` is sent to all other hosts, and `gateway` to all gateways; messages to them are then
    printed within half a second."""
    raylet: Any = importlib.import_module("ray._raylet")
    state = gcs_state(address)
    asking = GcsValue(raylet, address, "asked", asked, _LONGEST_ASKED)
    sharing = GcsValue(raylet, address, "gateway", gateway, _LONGEST_GATEWAY) if gateway else None
    while True:
        try:
            nodes = ray_nodes(state.node_table(), state.available_resources_per_node())
            workers = worker_actors(state.actor_table(None, None, "ALIVE"), state.job_table())
            shared = sharing.exchange() if sharing else ""
            snapshot = Snapshot(time.time(), nodes, workers, "", asking.exchange(), shared)
        except Exception as error:
            snapshot = Snapshot(time.time(), error=f"{type(error).__name__}: {error}")
        print(json.dumps(asdict(snapshot)), flush=True)  # noqa: T201
        until = time.monotonic() + interval
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _GATEWAY_EVERY) if sharing else left)
            if sharing and sharing.exchange() not in ("", snapshot.gateway):
                break


class GcsValue:
    """What supervisors send each other under one key in the GCS's key-value store."""

    def __init__(
        self, raylet: Any, address: str, key: str, file: Optional[Path], longest: int
    ) -> None:
        """`longest`: bytes."""
        self._raylet = raylet
        self._address = address
        self._key = key.encode()
        self._file = file
        self._longest = longest
        self._client: Any = None
        self._told = b""

    def exchange(self) -> str:
        """Publish the file's content if it is new, and return the last published message. Errors
        are left for the next call, with an empty answer: the list of nodes must not wait for this.
        """
        with contextlib.suppress(Exception):
            if self._client is None:
                self._client = self._raylet.GcsClient(address=self._address)
            word = b""
            with contextlib.suppress(OSError):
                word = read_file(self._file, self._longest) if self._file else b""
            if word != self._told:
                self._client.internal_kv_put(self._key, word, True, namespace=_NAMESPACE, timeout=2)
                self._told = word
            heard = self._client.internal_kv_get(self._key, namespace=_NAMESPACE, timeout=2) or b""
            return str(heard[: self._longest], "utf-8", "replace")
        return ""


def ray_nodes(
    table: List[Dict[str, Any]], available: Mapping[str, Mapping[str, float]]
) -> List[RayNode]:
    """Convert Ray's node table. `available`: the free resources of each live node, by node ID."""
    found = []
    for row in table:
        total = row.get("Resources", {})
        labels = row.get("Labels", {})
        gpus = float(total.get("GPU", 0.0))
        alive = bool(row["Alive"])
        left = float(available.get(row["NodeID"], {}).get("GPU", 0.0))
        found.append(
            RayNode(
                node_id=row["NodeID"],
                node_ip=row["NodeManagerAddress"],
                name=row.get("NodeName", ""),
                alive=alive,
                head="node:__internal_head__" in total,
                gpus=gpus,
                gpus_used=gpus - left if alive else 0.0,
                cpus=float(total.get("CPU", 0.0)),
                ray_version=labels.get(VERSION_LABELS[0], ""),
                python_version=labels.get(VERSION_LABELS[1], ""),
                death_reason=row.get("DeathReasonMessage", ""),
            )
        )
    return found


def worker_actors(
    actors: Mapping[str, Mapping[str, Any]], jobs: List[Dict[str, Any]]
) -> List[WorkerActor]:
    """Return the vLLM workers among Ray's actors, each with the host and pid of its driver."""
    drivers = {job["JobID"]: job for job in jobs}
    return [
        WorkerActor(
            name=actor["Name"] or f"{UNNAMED}{actor['ActorID']}",
            node_id=actor["Address"]["NodeID"],
            node_ip=actor["Address"]["IPAddress"],
            pid=int(actor["Pid"]),
            driver_pid=int(drivers.get(actor["JobID"], {}).get("DriverPid", 0)),
            driver_ip=drivers.get(actor["JobID"], {}).get("DriverIPAddress", ""),
        )
        for actor in actors.values()
        if actor["State"] == "ALIVE" and _is_worker(actor)
    ]


def _is_worker(actor: Mapping[str, Any]) -> bool:
    name = str(actor["Name"])
    return name.startswith(WORKER_PREFIX) or (
        not name and actor["ActorClassName"] == _UNNAMED_CLASS
    )


def own_argv() -> List[str]:
    """Return the command that runs this package, from its zip file or the source tree."""
    origin = Path(__file__).parents[2]
    if origin.is_file():
        return [sys.executable, str(origin)]
    return [sys.executable, "-m", "clusterctl.node"]


class RayView:
    """Keeps the ray-watch process alive and holds its last snapshot.

    Workers run one too, not only the head: a raylet that hangs cannot report itself, and the GCS,
    which counts it as dead, notifies no process that could restart it.
    """

    def __init__(self, argv: List[str], host: str, timing: Timing) -> None:
        """`argv` runs ray-watch; `host` is the name of this node."""
        self._argv = argv
        self._host = host
        self._timing = timing
        self._child: Optional[Child] = None
        self._backoff = Backoff(timing.ray_backoff_first, timing.ray_backoff_max)
        # The times are monotonic seconds.
        self._next_start = 0.0
        self._heard = 0.0
        self._answered: Optional[float] = None  # When the GCS last answered
        self._unlisted: Optional[float] = None  # Since when it has not listed this node
        self._generation = 0  # Distinguishes the process's lines from those of an ended one
        self._first_seen: Dict[str, float] = {}  # When the GCS first listed a node, by node id
        self.snapshot: Optional[Snapshot] = None
        self.taken = 0.0  # When the GCS answered, in monotonic seconds: the host's clock may change

    def tick(self, now: float, ray_up: bool, env: Mapping[str, str]) -> None:
        """Start, restart or end the process. `now`: monotonic seconds."""
        if self._child is None:
            if ray_up and now >= self._next_start:
                self._start(now, env)
        elif not ray_up:
            self.stop()
        elif (
            self._child.exit_status() is not None or now - self._heard > self._timing.watch_silence
        ):
            self._end_child()
            self._next_start = now + self._backoff.failed()

    def fresh(self) -> Optional[Snapshot]:
        """Return the last snapshot, or None if it is older than `snapshot_age`."""
        old = time.monotonic() - self.taken >= self._timing.snapshot_age
        return None if old else self.snapshot

    def unlisted(self, now: float) -> str:
        """Return why this node counts as lost, if for `unlisted_limit` seconds the GCS has answered
        without listing it as alive; otherwise an empty string."""
        snapshot = self.fresh()
        own = [node for node in snapshot.nodes if node.name == self._host] if snapshot else []
        if snapshot is None or any(node.alive for node in own):
            self._unlisted = None
            return ""
        self._unlisted = now if self._unlisted is None else self._unlisted
        if now - self._unlisted < self._timing.unlisted_limit:
            return ""
        reason = own[-1].death_reason if own else ""
        return f"the GCS considers this node dead: {reason or 'it does not know it'}"

    def rejoined(self, now: float) -> FrozenSet[str]:
        """Return the names of nodes that came back under the address of a dead one, and that the
        GCS may not reach yet."""
        nodes = self.snapshot.nodes if self.snapshot else []
        left = {node.node_ip for node in nodes if not node.alive}
        since = now - self._timing.rejoin
        return frozenset(
            node.name
            for node in nodes
            if node.alive
            and node.node_ip in left
            and self._first_seen.get(node.node_id, now) > since
        )

    def unanswered(self, now: float) -> str:
        """Return how long a GCS that used to answer has been silent, or "" if not too long."""
        if self._answered is None or now - self._answered < self._timing.gcs_silence:
            return ""
        return f"the GCS has not answered for {now - self._answered:.0f} s"

    def stop(self) -> None:
        """End the process, and drop its results: they do not apply to the next Ray."""
        self._end_child()
        self._answered = self._unlisted = None

    def _end_child(self) -> None:
        if self._child:
            self._child.kill_all()
        self._child = None
        self._generation += 1
        self.snapshot = None

    def _start(self, now: float, env: Mapping[str, str]) -> None:
        self._heard = now
        try:
            self._generation += 1
            read = partial(self._read, self._generation)
            self._child = Child(self._argv, {**os.environ, **env}, None, read)
        except OSError:
            self._next_start = now + self._backoff.failed()

    def _read(self, generation: int, line: str) -> None:
        # Runs in the reader's thread. Ray's own warnings arrive here too, and the last lines of an
        # ended process may arrive late.
        if generation != self._generation or not line.startswith("{"):
            return
        try:
            snapshot = from_json(Snapshot, line)
        except ValueError:
            return
        self._heard = time.monotonic()
        if not snapshot.error:
            self._first_seen = {
                node.node_id: self._first_seen.get(node.node_id, self._heard)
                for node in snapshot.nodes
            }
            self.taken = self._heard - max(0.0, time.time() - snapshot.time)
            self.snapshot = snapshot
            self._answered = self._heard
            self._backoff.succeeded()
