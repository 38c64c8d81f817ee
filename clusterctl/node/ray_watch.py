"""Asks the GCS who is there and prints a JSON line each time. The only module that needs Ray.

It runs as a process of its own: Ray's C++ client ends the process it lives in when the GCS
stays away, and the supervisor must not end with it.

`ray._private.state.GlobalState` is used, since it needs neither a dashboard nor a driver that
registers a job, and answers in milliseconds (2.60: 8 ms; `ray list nodes` takes 4 s).
"""

from __future__ import annotations

import importlib
import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping

from clusterctl.node.documents import RayNode

# Labels that `ray start` gets from the supervisor: the GCS itself keeps no version per node.
VERSION_LABELS = ("ray-version", "python-version")

WORKER_PREFIX = "vllm_Worker_"


@dataclass(frozen=True)
class WorkerActor:
    """A living vLLM worker: `name` is vllm_Worker_INSTANCE[_TPi][_PPj]."""

    name: str
    node_id: str
    node_ip: str
    pid: int
    driver_pid: int  # The process on the head that owns it


@dataclass(frozen=True)
class Snapshot:
    """What the GCS said at one moment."""

    time: float  # Unix seconds
    nodes: List[RayNode] = field(default_factory=list)
    workers: List[WorkerActor] = field(default_factory=list)
    error: str = ""


def watch(address: str, interval: float) -> None:
    """Print a snapshot every `interval` seconds until nobody reads them."""
    state = _connect(address)
    while True:
        _print(_look(state))
        time.sleep(interval)


def _print(snapshot: Snapshot) -> None:
    print(json.dumps(asdict(snapshot)), flush=True)  # noqa: T201


def _connect(address: str) -> Any:
    raylet: Any = importlib.import_module("ray._raylet")
    private_state: Any = importlib.import_module("ray._private.state")
    state = private_state.GlobalState()
    options = raylet.GcsClientOptions.create(
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    state._initialize_global_state(options)  # noqa: SLF001
    return state


def _look(state: Any) -> Snapshot:
    try:
        nodes = ray_nodes(state.node_table(), state.available_resources_per_node())
        workers = worker_actors(state.actor_table(None, None, "ALIVE"), state.job_table())
    except Exception as error:
        return Snapshot(time.time(), error=f"{type(error).__name__}: {error}")
    return Snapshot(time.time(), nodes, workers)


def ray_nodes(
    table: List[Dict[str, Any]], available: Mapping[str, Mapping[str, float]]
) -> List[RayNode]:
    """RayNodes from Ray's node table and what each living node has left."""
    return [_ray_node(row, available.get(row["NodeID"], {})) for row in table]


def _ray_node(row: Mapping[str, Any], left: Mapping[str, float]) -> RayNode:
    total = row.get("Resources", {})
    labels = row.get("Labels", {})
    gpus = float(total.get("GPU", 0.0))
    alive = bool(row["Alive"])
    return RayNode(
        node_id=row["NodeID"],
        node_ip=row["NodeManagerAddress"],
        name=row.get("NodeName", ""),
        alive=alive,
        head="node:__internal_head__" in total,
        gpus=gpus,
        gpus_used=gpus - float(left.get("GPU", 0.0)) if alive else 0.0,
        cpus=float(total.get("CPU", 0.0)),
        ray_version=labels.get(VERSION_LABELS[0], ""),
        python_version=labels.get(VERSION_LABELS[1], ""),
        death_reason=row.get("DeathReasonMessage", ""),
    )


def worker_actors(
    actors: Mapping[str, Mapping[str, Any]], jobs: List[Dict[str, Any]]
) -> List[WorkerActor]:
    """The vLLM workers among Ray's actors, each with the pid of its driver."""
    drivers = {job["JobID"]: int(job["DriverPid"]) for job in jobs}
    return [
        WorkerActor(
            name=actor["Name"],
            node_id=actor["Address"]["NodeID"],
            node_ip=actor["Address"]["IPAddress"],
            pid=int(actor["Pid"]),
            driver_pid=drivers.get(actor["JobID"], 0),
        )
        for actor in actors.values()
        if actor["Name"].startswith(WORKER_PREFIX) and actor["State"] == "ALIVE"
    ]
