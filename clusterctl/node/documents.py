"""The files that the controller and a node exchange, as typed data. Standard library only:
this package also runs inside the node container, under the image's own Python (3.9 and up).

On a host, for the cluster NAME:

    /etc/clusterctl/NAME/node.json               NodeDocument     written by the controller
    /etc/clusterctl/NAME/hosts                   names and addresses of the cluster, the same
    /etc/clusterctl/NAME/services/SERVICE.json   ServiceDocument  the same, head only
    /etc/clusterctl/NAME/ray.token, api.key      0600             made on the head
    /run/clusterctl/NAME/state.json              NodeState        replaced whole by the supervisor
    /var/log/clusterctl/NAME/journal.jsonl       what the supervisor did, a JSON object a line
    /var/log/clusterctl/NAME/ray.log, SERVICE.log
    /opt/clusterctl/VERSION-HASH/node.pyz        this package, runnable
"""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, List, Type, TypeVar

T = TypeVar("T")


# Seconds. With the time between two looks, a service that hangs is known within 60. Far more than
# one step of an engine takes, and every step is a sign of life: a long prompt is read in many.
STALL_TIMEOUT = 50.0


@dataclass(frozen=True)
class ExpectedNode:
    """A node that must be in Ray before anything is served."""

    host: str
    node_ip: str
    gpus: int


@dataclass(frozen=True)
class GpuListing:
    """The command that lists the GPUs which the container sees, one of its lines for each."""

    argv: List[str] = field(default_factory=list)  # Empty: there are none to count
    begins: str = ""  # How the line of a GPU begins


@dataclass(frozen=True)
class NodeDocument:
    """What this node is to be."""

    cluster: str
    host: str
    role: str  # `head` or `worker`
    node_ip: str
    head_ip: str
    ray_argv: List[str]  # `ray start --block ...`, complete
    env: Dict[str, str]  # Per-node environment, the same that the container has
    expected: List[ExpectedNode]  # Every node of the cluster, on every node
    gcs_port: int = 6379  # Where the head's GCS listens; a worker watches it
    gpu_listing: GpuListing = field(default_factory=GpuListing)


@dataclass(frozen=True)
class ServiceDocument:
    """A model to keep serving. Lives on the head."""

    name: str
    model: str  # What the user asked for, for display
    served_name: str  # The `model` of API requests
    argv: List[str]  # `vllm serve ...`, complete
    env: Dict[str, str]
    host: str  # Address that the API listens on
    port: int
    tensor_parallel: int
    pipeline_parallel: int
    gpus: int  # Ranks in all
    fingerprint: str  # Changes whenever the service must be restarted to follow this document
    # Seconds from start to the first answer before an attempt counts as failed.
    ready_timeout: float = 1800.0
    shutdown_timeout: float = 60.0  # Seconds that running requests get when the service stops
    # Seconds without a sign of life, while something is asked of it, until it is restarted.
    stall_timeout: float = STALL_TIMEOUT


@dataclass(frozen=True)
class RayNode:
    """One node as Ray's GCS reports it."""

    node_id: str
    node_ip: str
    name: str  # --node-name: the inventory's host name
    alive: bool
    head: bool
    gpus: float
    gpus_used: float
    cpus: float
    ray_version: str = ""
    python_version: str = ""
    death_reason: str = ""


@dataclass(frozen=True)
class Rank:
    """One vLLM worker, as Ray places it."""

    rank: int
    tp: int
    pp: int
    host: str
    node_ip: str
    pid: int


@dataclass(frozen=True)
class ServiceState:
    """A service as the supervisor sees it.

    `state`: waiting (for the Ray contract) | starting | loading | ready | stalled | backing-off
    | stopping | stopped | failed.
    """

    name: str
    state: str
    since: float  # Unix seconds
    fingerprint: str = ""
    detail: str = ""  # One sentence: why it waits, why it failed
    pid: int = 0
    attempts: int = 0  # Starts since the last time it was ready
    restarts: int = 0
    # While it loads: ray | weights | kv-cache | graphs | warm-up | listening, from vLLM's log;
    # `detail` then has the line that says so.
    stage: str = ""
    ready_seconds: float = 0.0  # From the start of the process to its first answer
    # What it was seen to answer, once it is ready (`tasks`): completions | embeddings | ...
    task: str = ""
    running: float = 0.0
    waiting: float = 0.0
    tokens_per_second: float = 0.0
    kv_cache_use: float = 0.0  # 0 to 1
    # What sign of life is missing, and for how long: `no token for 15 s (3 requests running, 0
    # waiting)`; nothing while all is well.
    silence: str = ""
    ranks: List[Rank] = field(default_factory=list)
    # The last lines of the log of an attempt that failed.
    last_error: List[str] = field(default_factory=list)
    # Why it was last ended or ended by itself, in one sentence; kept once it is ready again.
    last_failure: str = ""
    last_failure_time: float = 0.0  # Unix seconds


@dataclass(frozen=True)
class UnreadableDocument:
    """A document that the supervisor cannot read, as it was found or after it was changed."""

    file: str  # `node.json`, `services/NAME.json`
    why: str
    # The text that was read there last, which the supervisor goes on with; empty: none was.
    last_good: str = ""


@dataclass(frozen=True)
class BrokenNic:
    """A NIC of this node that carries nothing now."""

    name: str  # Empty where no NIC has the node IP any more
    purposes: str  # `gloo, nccl`: what it is to carry
    problem: str  # missing | down (by order, or without a link) | no address


@dataclass(frozen=True)
class NodeState:
    """Everything `status` needs of a node, rewritten at least every 3 s."""

    host: str
    role: str
    time: float  # Unix seconds of writing: an old one means that the supervisor hangs or is gone
    version: str
    ray: str  # waiting (a worker, for its head) | starting | up | down | backing-off
    ray_since: float
    ray_restarts: int
    ray_detail: str = ""
    ray_version: str = ""
    python_version: str = ""
    vllm_version: str = ""
    # GPUs that the container sees now (NodeDocument.gpu_listing); -1: not looked, or none to
    # count.
    gpus_visible: int = -1
    gpus_said: str = ""  # The words of the command that lists them, when it shows none
    broken_nics: List[BrokenNic] = field(default_factory=list)
    # Head only: the GCS's own list, dead ones included.
    nodes: List[RayNode] = field(default_factory=list)
    nodes_time: float = 0.0
    services: List[ServiceState] = field(default_factory=list)
    unreadable: List[UnreadableDocument] = field(default_factory=list)
    # Why logs and journal are not written, as `DIRECTORY is on a file system that is full`;
    # empty: they are.
    logs_problem: str = ""


def config_dir(cluster: str) -> str:
    """Where the documents and secrets of `cluster` are, on the host and in the container."""
    return f"/etc/clusterctl/{cluster}"


def log_dir(cluster: str) -> str:
    """Where logs, the journal and the state are, on the host and in the container."""
    return f"/var/log/clusterctl/{cluster}"


def run_dir(cluster: str) -> str:
    """Where the state is, on the host and in the container: in memory, so that it can be told of
    a full disk, and that none from before a reboot is taken for one of now."""
    return f"/run/clusterctl/{cluster}"


def to_json(document: Any) -> str:
    """A document as stable, readable JSON."""
    return json.dumps(dataclasses.asdict(document), indent=1, sort_keys=True) + "\n"


def from_json(kind: Type[T], text: str) -> T:
    """A document of `kind` from `text`; unknown keys are skipped, so that versions may differ.

    Raises ValueError when `text` is not JSON, lacks a key, or has a value of another type.
    """
    try:
        return typing.cast("T", _build(kind, json.loads(text)))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error


def _build(kind: Any, value: Any) -> Any:
    """`value` as `kind`: dataclasses, lists of them, and plain values."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {f.name for f in dataclasses.fields(kind)}
        return typing.cast("Any", kind)(
            **{key: _build(hints[key], item) for key, item in value.items() if key in known}
        )
    if typing.get_origin(kind) is list:
        (item_kind,) = typing.get_args(kind)
        return [_build(item_kind, item) for item in _of_type(list, value)]
    if typing.get_origin(kind) is dict:
        _, item_kind = typing.get_args(kind)
        return {key: _build(item_kind, item) for key, item in _of_type(dict, value).items()}
    return _of_type(kind, value) if kind in (str, int, float, bool) else value


def _of_type(kind: Any, value: Any) -> Any:
    if not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{json.dumps(value)[:40]} is no {kind.__name__}")
    return value
