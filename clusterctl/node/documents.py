"""The files that the controller and a node exchange, as typed data.

This package also runs inside the node container, under the image's own Python (3.9 and up), so it
uses only the standard library. Field names are a format shared between versions.

On a host, for the cluster NAME:

    /etc/clusterctl/NAME/node.json               NodeDocument     written by the controller
    /etc/clusterctl/NAME/hosts                   names and addresses of the cluster, likewise
    /etc/clusterctl/NAME/services/SERVICE.json   ServiceDocument  likewise, on the host of rank 0,
                                                                  which starts it
    /etc/clusterctl/NAME/members/SERVICE.json    MembersDocument  likewise, head only: the replicas
    /etc/clusterctl/NAME/keys.json               KeysDocument     likewise, head only
    /etc/clusterctl/NAME/gateway.pem             0600             certificate and key, head only;
                                                                  gateway.crt: the former alone
    /etc/clusterctl/NAME/drained.json            DrainedHosts     likewise, head only
    /etc/clusterctl/NAME/ray.token, api.key      0600             made on the head
    /run/clusterctl/NAME/state.json              NodeState        replaced by the supervisor
    /var/log/clusterctl/NAME/journal.jsonl       what the supervisor did, a JSON object a line
    /var/log/clusterctl/NAME/ledger.jsonl        which versions were there since when, likewise
    /var/log/clusterctl/NAME/evidence-*.json     of services that hung (node/evidence.py)
    /var/log/clusterctl/NAME/ray.log, SERVICE.log
    /opt/clusterctl/VERSION-HASH/node.pyz        this package, runnable
    /var/lib/clusterctl/caches/NAME/             compile caches and downloads of the container
    /var/lib/clusterctl/tables/NAME/             the tables of Ray's GCS; head only
    /var/lib/clusterctl/measured/NAME/           what commands measured; head only, in no container
    /var/lib/clusterctl/declared/NAME/           a copy of each document that commands wrote on any
                                                 host, likewise, to restore or move it from
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple, Type, TypeVar

T = TypeVar("T")

# Directory of what root of the host works with, such as packages, blobs and records. A container
# sees no more of it than its cache.
PRIVATE = "/var/lib/clusterctl"

# Seconds. A hung service is thus detected within 60 s, including the polling interval. One engine
# step takes far less, and every step counts as a sign of life: a long prompt has many.
STALL_TIMEOUT = 50.0

# Bytes of host memory that a rank pins for each that it puts there to sleep, at most: PyTorch pins
# in powers of two. 22.3 GiB were taken for 15.9 GiB of an 8B, 116 for the 62.7 of a 32B.
MOST_PINNED = 2.0


@dataclass(frozen=True)
class ExpectedNode:
    """A node that must be in Ray before a service is started."""

    host: str
    node_ip: str
    gpus: int


@dataclass(frozen=True)
class GpuListing:
    """The commands that list and read the GPUs visible in the container, one per line."""

    argv: List[str] = field(default_factory=list)  # Empty on a host without GPUs
    begins: str = ""  # Prefix of each line that stands for a GPU
    # What prints readings with commas between them, and their names: `index`, `temperature` in
    # degrees Celsius, `uncorrected` (memory errors), `slowed WHY` (Active or not), and any others.
    query: List[str] = field(default_factory=list)
    columns: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class NodeDocument:
    """The desired state of this node."""

    cluster: str
    host: str
    role: str  # `head` or `worker`
    node_ip: str
    head_ip: str
    ray_argv: List[str]  # `ray start --block ...`, complete
    env: Dict[str, str]  # Per-node environment, the same as the container's
    expected: List[ExpectedNode]  # Every node of the cluster, on every node
    gcs_port: int = 6379  # Port of the head's GCS, which a worker watches
    gpu_listing: GpuListing = field(default_factory=GpuListing)
    # Where clients reach the gateway of this node, if several hosts have one. The head then tells
    # the others what to follow; empty: only the head has a gateway.
    gateway: str = ""
    virtual_ip: str = ""  # Address that the gateways of several hosts share

    @property
    def store_ports(self) -> range:
        """Ports for the store of torch.distributed of services that this node starts: every fourth
        port in the second half of the ports of Ray's workers, of which Ray uses the first ones.
        Like all of them, they are open between hosts, and below the ephemeral ports."""
        ends = [0, -1]
        for end, flag in enumerate(("--min-worker-port=", "--max-worker-port=")):
            values = [word for word in self.ray_argv if word.startswith(flag)]
            if values:
                ends[end] = int(values[-1][len(flag) :])
        ports = range(ends[0], ends[1] + 1)
        return ports[len(ports) // 2 :: 4]

    @property
    def of_ray(self) -> Tuple[List[str], Dict[str, str], str]:
        """The part of the document that Ray follows: if it changes, Ray is restarted."""
        return self.ray_argv, self.env, self.head_ip


@dataclass(frozen=True)
class ServiceDocument:
    """One vLLM process to keep running: a replica of a service.

    It is on the host of its first rank, and its ranks stay on the hosts of `node_ips`.
    """

    name: str  # Unique in the cluster; of replica N > 1 of a service: `SERVICE@N` (`replica_name`)
    model: str  # As the user named it, for display
    served_name: str  # The `model` in API requests
    argv: List[str]  # `vllm serve ...`, complete
    env: Dict[str, str]
    host: str  # Address that the API listens on
    port: int
    tensor_parallel: int
    pipeline_parallel: int
    gpus: int  # Total number of ranks
    fingerprint: str  # Changes whenever the service must be restarted to follow this document
    # Seconds from start to the first answer before an attempt counts as failed.
    ready_timeout: float = 1800.0
    shutdown_timeout: float = 60.0  # Seconds that running requests get when the service stops
    # Seconds without a sign of life, while requests are pending, before the service is restarted.
    stall_timeout: float = STALL_TIMEOUT
    replica: int = 1  # From 1 on; numbers of replicas that were stopped are free again
    idle: float = 0.0  # Seconds without a request after which it sleeps; 0: never
    # Replicas up to this number never sleep: the first of those that there are, whatever their
    least: int = -1  # numbers. The gateway asks others when they are needed; -1: it asks all
    parked_gib: float = 0.0  # What each rank then puts into its host's memory; 0: not known
    # Node IP of each rank, in vLLM's order, on which Ray has to place it. Empty in documents of
    # clusterctl 0.2 and older: Ray chooses, and clients reach the process directly.
    node_ips: List[str] = field(default_factory=list)
    kind: str = ""  # Of its model (kinds.known), where config.json shows it; else vLLM is asked
    adapters: Dict[str, str] = field(default_factory=dict)  # Directories of LoRA adapters, by name
    # Of a second engine on its GPUs, asleep until the first fails (node/standby.py); 0: none
    standby_port: int = 0
    # Of two services with the same GPUs in turn: it is the first, or the name of that, on this host
    swap: bool = False
    swap_with: str = ""

    @property
    def service(self) -> str:
        """The name of the service that this document belongs to."""
        return service_of(self.name)

    @property
    def sleeps(self) -> bool:
        """Whether its engine may be put to sleep."""
        return bool(self.idle or self.takes_turns)

    @property
    def stays_awake(self) -> bool:
        """Whether it is one of those that never sleep of a service that scales."""
        return self.replica <= self.least

    @property
    def takes_turns(self) -> bool:
        """Whether there is, or may be, another engine on its GPUs, which has them in turn."""
        return bool(self.standby_port or self.swap or self.swap_with)

    @property
    def is_standby(self) -> bool:
        """Whether it is what the supervisor makes of one with a standby, for that."""
        return self.port == self.standby_port


@dataclass(frozen=True)
class Member:
    """A replica as the gateway reaches it."""

    replica: int
    host: str  # The inventory's name of the host that its API runs on
    address: str
    port: int
    # It gets no new requests: it is about to be stopped or restarted. If the command is killed
    # meanwhile, the next `bootstrap`, `restart` or `serve` lets it serve again.
    draining: bool = False
    standby_port: int = 0  # Of its standby, on the same host; 0: none


@dataclass(frozen=True)
class MembersDocument:
    """The declared replicas of a service, for the gateway. The file is on the head only.

    A member gets requests if it is not draining and answers the checks of `node/endpoint.py`
    (`EndpointWatch`), which the gateway's host sends to `address` itself, with the cluster's key.
    """

    service: str
    served_names: List[str]  # The `model` in API requests
    port: int  # That clients know: the gateway's, which no member listens on
    members: List[Member] = field(default_factory=list)
    stall_timeout: float = STALL_TIMEOUT
    listen: str = ""  # Address of the gateway's port; empty: the head's node IP
    on: str = ""  # The hosts that replicas may be on, as `serve --on` names them; empty: all
    asked: int = 0  # The number of replicas that `serve` was to start; 0: not known
    least: int = -1  # How many of them never sleep (node/scaling.py); -1: it asks all
    ttft: float = 0.0  # Seconds to the first token that it is to keep by scaling; 0: any
    adapters: Dict[str, str] = field(default_factory=dict)  # As its replicas have them


@dataclass(frozen=True)
class NamedKey:
    """A user's API key. The key itself is not stored: it was shown once, when it was created."""

    name: str
    sha256: str  # Of the key, in hexadecimal
    created: float  # Unix seconds
    requests_per_minute: int = 0  # 0: no limit
    tokens_per_day: int = 0  # Read and generated, by days in UTC; 0: no limit
    # That it is for, adapters among them, by the `model` of requests; none: all
    models: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class KeysDocument:
    """The named keys that the gateway accepts besides the cluster's own. The file is on the head
    only."""

    keys: List[NamedKey] = field(default_factory=list)


@dataclass(frozen=True)
class SharedGateway:
    """What the head sends the gateways of other hosts through the GCS: they have no such files, so
    a returning host does not use old ones."""

    members: List[MembersDocument] = field(default_factory=list)
    keys: KeysDocument = field(default_factory=KeysDocument)


@dataclass(frozen=True)
class DrainedHosts:
    """Hosts that get no replicas. The file is only on the head."""

    hosts: List[str] = field(default_factory=list)  # Names of the inventory


@dataclass(frozen=True)
class RayNode:
    """A node as Ray's GCS reports it."""

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
    """A vLLM worker, as Ray placed it."""

    rank: int
    tp: int
    pp: int
    host: str
    node_ip: str
    pid: int


@dataclass(frozen=True)
class SleepState:
    """A service that may sleep, as the supervisor sees it."""

    asleep: bool = False
    since: float = 0.0  # Unix seconds of its last sleep or waking
    host_gib: float = 0.0  # What its ranks have put into the memory of their hosts
    wakes_in: float = 0.0  # Seconds that it took the last time; 0: not known
    waiting: int = 0  # Requests that wait until it is awake
    refused: int = 0  # Requests beyond the limits of those, since it was started


IN_TURN = "for its turn"
"""How the detail of a service begins that waits for nothing that Ray lacks."""


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
    attempts: int = 0  # Starts since it was last ready
    restarts: int = 0
    # While it loads, from vLLM's log: ray | ranks | weights | kv-cache | graphs | warm-up |
    # listening. `detail` then holds that log line.
    stage: str = ""
    ready_seconds: float = 0.0  # From the start of the process to its first answer
    start: Dict[str, float] = field(default_factory=dict)  # Of these, by stage, `imports` first
    kind: str = ""  # Of its model (kinds.known), once ready: text | embed | ...
    running: float = 0.0
    waiting: float = 0.0
    tokens_per_second: float = 0.0
    kv_cache_use: float = 0.0  # 0 to 1
    # Which sign of life is missing, if one is: `no token for 15 s (3 requests running, 0 waiting)`
    silence: str = ""
    ranks: List[Rank] = field(default_factory=list)
    # How many of its ranks Ray lists, if not all for a minute: the end of others may go unnoticed.
    unwatched: str = ""
    last_error: List[str] = field(default_factory=list)  # The end of a failed attempt's log
    # Why it last ended or was ended, in one sentence. Also kept across restarts of the container.
    last_failure: str = ""
    last_failure_time: float = 0.0  # Unix seconds
    key: str = ""  # Mark (secret_files.mark) of the api.key that it was started with
    # By name of an adapter: why it is not offered; empty if it is
    adapters: Dict[str, str] = field(default_factory=dict)
    sleep: SleepState = field(default_factory=SleepState)  # One that sleeps is `ready`


@dataclass(frozen=True)
class GatewayMember:
    """A member, as the gateway treats it."""

    service: str
    replica: int
    host: str
    # Whether it gets requests: False once the proxy knows that it is to get none.
    admitted: bool
    why: str = ""  # Why it gets none
    in_flight: int = 0  # Requests that it has now
    requests: int = 0  # That it answered, since the gateway's counts began
    standby: bool = False  # It is the replica's standby
    spare: bool = False  # It gets requests only where others fail, until more are needed


@dataclass(frozen=True)
class KeyUse:
    """The usage of one key since the gateway started counting."""

    name: str  # `cluster` for the cluster's own key
    requests: int = 0
    prompt_tokens: int = 0  # As vLLM reports them
    completion_tokens: int = 0
    day: str = ""  # The last day with a request, in UTC: `2026-11-22`
    tokens_of_day: int = 0


@dataclass(frozen=True)
class GatewayState:
    """The gateway of this node. `state`: absent (no HAProxy in the image) | idle (no service is
    behind it) | starting | up | backing-off."""

    state: str = "absent"
    detail: str = ""
    version: str = ""  # HAProxy's
    since: float = 0.0
    restarts: int = 0
    listens: List[str] = field(default_factory=list)  # `10.0.0.1:8000`
    tls: bool = False
    tls_until: float = 0.0  # Unix seconds: the end of the certificate that it uses; 0: not known
    served: int = 0  # Requests that a member answered, with any status below 500
    retried: int = 0  # Of these, sent to more than one member
    failed: int = 0  # Without an answer, or with a status from 500 on
    refused: int = 0  # By the gateway itself: key, limit, path, model
    members: List[GatewayMember] = field(default_factory=list)
    keys: List[KeyUse] = field(default_factory=list)
    keys_in_effect: str = ""  # SHA-256 of keys.json, as it is followed now


# Reasons of UnreadableDocument, besides the errors of JSON
DELETED = "it was deleted"
CHANGED = "it is not what a command wrote"


@dataclass(frozen=True)
class UnreadableDocument:
    """A document that the supervisor cannot read, or must not follow."""

    file: str  # `node.json`, `keys.json`, `services/NAME.json`, `members/NAME.json`
    why: str
    # Its last readable text, which the supervisor keeps using; empty if there was none.
    last_good: str = ""


# Of services; `.` and `-` also in the middle
SERVICE_NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"


def is_service_name(name: str) -> bool:
    """Whether the name is valid for a service: it becomes a file name on the hosts."""
    return bool(re.fullmatch(SERVICE_NAME, name)) and ".." not in name


def kind_of(file: str) -> Any:
    """Return the class of the document `file`, a path below `config_dir`; None if
    UnreadableDocument does not cover it."""
    directory, _, name = file.rpartition("/")
    if not directory:
        kinds = {"node": NodeDocument, "keys": KeysDocument, "drained": DrainedHosts}
        return kinds.get(name[: -len(".json")]) if name.endswith(".json") else None
    if not name.endswith(".json"):
        return None
    return {"services": ServiceDocument, "members": MembersDocument}.get(directory)


def read_document(file: str, text: str) -> Any:
    """Return the document `file`, a path below `config_dir`, whose name must match the file's.

    Raises ValueError if `text` is not such a document, or names a different service.
    """
    kind = kind_of(file)
    if kind is None:
        raise ValueError(f"{file} is not a known document")
    document = from_json(kind, text)
    if kind in (ServiceDocument, MembersDocument):
        name = document.service if kind is MembersDocument else document.name
        if not is_service_name(service_of(name)) or file.rpartition("/")[2] != f"{name}.json":
            raise ValueError(f"it is named {name[:80]!r}, which is not the name of its file")
    if kind is ServiceDocument and document.name != replica_name(
        document.service, document.replica
    ):
        raise ValueError(f"it is named {document.name}, and is replica {document.replica}")
    return document


@dataclass(frozen=True)
class BrokenNic:
    """A NIC of this node that currently cannot carry traffic."""

    name: str  # Empty if no NIC has the node IP
    purposes: str  # `gloo, nccl`: which traffic it should carry
    problem: str  # missing | down (administratively, or no link) | no address


@dataclass(frozen=True)
class NodeState:
    """Everything that `status` needs to know about a node, rewritten at least every 3 s."""

    host: str
    role: str
    time: float  # Unix seconds of writing; an old time means the supervisor hangs or has ended
    version: str
    ray: str  # waiting (a worker for its head) | starting | up | down | backing-off
    ray_since: float
    ray_restarts: int
    ray_detail: str = ""
    keeps_tables: bool = False  # Head only: its GCS comes back as itself
    ray_version: str = ""
    python_version: str = ""
    vllm_version: str = ""
    # Of everything that the ledger has about this node: driver, kernel, nccl, image, ...
    versions: Dict[str, str] = field(default_factory=dict)
    # GPUs that the container sees (NodeDocument.gpu_listing); -1: none listed yet, or host without
    gpus_visible: int = -1
    gpus_said: str = ""  # Output of the listing command, if it lists no GPU
    broken_nics: List[BrokenNic] = field(default_factory=list)
    lasting: List[str] = field(default_factory=list)  # What else is wrong with the host now
    # Head only: the GCS's own list, including dead nodes.
    nodes: List[RayNode] = field(default_factory=list)
    nodes_time: float = 0.0
    services: List[ServiceState] = field(default_factory=list)
    standbys: List[ServiceState] = field(default_factory=list)  # Of these, named by `standby_name`
    gateway: GatewayState = field(default_factory=GatewayState)
    unreadable: List[UnreadableDocument] = field(default_factory=list)
    # Marks of this host's secrets by the names of their files, and why others cannot be used
    secrets: Dict[str, str] = field(default_factory=dict)
    secret_problems: List[str] = field(default_factory=list)
    # Why logs and journal cannot be written, if they cannot: `DIRECTORY is on a full file system`
    logs_problem: str = ""

    def service(self, name: str) -> Optional[ServiceState]:
        """Return the state of the service or replica with this name."""
        return next((each for each in self.services if each.name == name), None)

    @property
    def engines(self) -> List[ServiceState]:
        """The states of services, then those of standbys."""
        return [*self.services, *self.standbys]

    def engines_of(self, replica: str) -> List[ServiceState]:
        """Return the states of a replica and of its standby, as far as there are any."""
        names = (replica, standby_name(replica))
        return [each for each in self.engines if each.name in names]


def replica_name(service: str, replica: int) -> str:
    """Return the name of a replica's document and log. A service's name contains no @."""
    return service if replica == 1 else f"{service}@{replica}"


def standby_name(replica: str) -> str:
    """Return the name of the state and the log of a replica's standby."""
    return f"{replica}@standby"


def is_standby(name: str) -> bool:
    """Whether a state has this name for being a standby's."""
    return name.endswith(standby_name(""))


def service_of(name: str) -> str:
    """Return the service that a document or log of this name belongs to."""
    return name.partition("@")[0]


def config_dir(cluster: str) -> str:
    """Return the directory of documents and secrets, on the host and in the container."""
    return f"/etc/clusterctl/{cluster}"


def log_dir(cluster: str) -> str:
    """Return the directory of logs and the journal, on the host and in the container."""
    return f"/var/log/clusterctl/{cluster}"


def run_dir(cluster: str) -> str:
    """Return the directory of the state file, on the host and in the container.

    In memory: a full disk can be reported, and no state outlives a reboot.
    """
    return f"/run/clusterctl/{cluster}"


def cache_dir(cluster: str) -> str:
    """Return the directory of compile caches and downloads, on the host and in the container."""
    return f"{PRIVATE}/caches/{cluster}"


def measured_dir(cluster: str) -> str:
    """Return the head's directory of measurements by commands, which no container sees."""
    return f"{PRIVATE}/measured/{cluster}"


def tables_dir(cluster: str) -> str:
    """Return the directory of the GCS's tables, on the head and in its container."""
    return f"{PRIVATE}/tables/{cluster}"


def declared_dir(cluster: str) -> str:
    """Return the directory on the head with a copy of each document that a command wrote, which no
    container sees."""
    return f"{PRIVATE}/declared/{cluster}"


def to_json(document: Any) -> str:
    """Return a document as stable, readable JSON."""
    return json.dumps(dataclasses.asdict(document), indent=1, sort_keys=True) + "\n"


def from_json(kind: Type[T], text: str) -> T:
    """Build a document of `kind` from JSON. Unknown keys are ignored, so that versions may differ.

    Raises ValueError if `text` is not JSON, lacks a key, or has a value of the wrong type.
    """
    try:
        return typing.cast("T", _build(kind, json.loads(text)))
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error


def _build(kind: Any, value: Any) -> Any:
    """Convert `value` to `kind`: a dataclass, a list or dictionary of them, or a plain value."""
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
        raise TypeError(f"{json.dumps(value)[:40]} is not a {kind.__name__}")
    if isinstance(value, (int, float)) and not abs(value) < 2**63:  # also NaN
        raise TypeError(f"{str(value)[:40]} is out of range")
    return value
