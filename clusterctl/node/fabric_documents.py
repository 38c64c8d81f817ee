"""What the fabric gate asks and answers: data between the controller, the head and the ranks.

`python3 node.pyz fabric` on the head takes a FabricSpec on stdin and prints JSON lines: `{"say":
TEXT}` while it works, `{"report": FabricReport}` at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List

from clusterctl.node.documents import ExpectedNode


@dataclass(frozen=True)
class GpuBackend:
    """What PyTorch calls GPUs and the collectives between them; empty: there are only CPUs."""

    device: str = ""  # Such as `cuda`: a module of torch, and the beginning of each device's name
    collectives: str = ""  # Such as `nccl`: the backend of torch.distributed


@dataclass(frozen=True)
class FabricSpec:
    """Which nodes are to prove that they reach each other."""

    nodes: List[ExpectedNode]
    # Empty: a node is one rank, on its CPUs, whatever it has.
    gpu_backend: GpuBackend = field(default_factory=GpuBackend)


@dataclass(frozen=True)
class Place:
    """An address that other nodes must reach, and what for."""

    purpose: str  # `control`, `gloo`, `nccl`, or several of them: `gloo, nccl`
    nic: str
    ip: str
    problem: str = ""  # missing | down | no address


@dataclass(frozen=True)
class SeenNode:
    """What a process that Ray started on a node finds there."""

    host: str
    env: Dict[str, str]  # The variables that choose interfaces, as they came
    interfaces: Dict[str, List[str]]
    places: List[Place] = field(default_factory=list)


@dataclass(frozen=True)
class Crossing:
    """One TCP connection to an ephemeral port of another node."""

    source: str
    target: str
    purpose: str
    nic: str  # The target's, by the name it has there
    ip: str
    port: int
    error: str = ""  # Empty: it answered as itself
    left_by: str = ""  # The address that the routes gave the connection on its own side
    round_trip: float = 0.0  # Seconds, the shortest of ten


@dataclass(frozen=True)
class Collective:
    """An all-reduce over all ranks of one backend, whose result was right."""

    backend: str  # `gloo`, or the one between GPUs, such as `nccl`
    ranks: int
    hosts: int
    # Bytes/s that cross each host's link, at least: 2 (n - 1) / n x size / time with n hosts, and
    # with n ranks on a single host. With one rank on each host it is what nccl-tests call bus
    # bandwidth; with several, NCCL adds up inside the hosts first, and theirs can exceed the
    # line.
    bandwidth: float
    latency: float  # Seconds of an all-reduce of 8 bytes
    size: int  # Bytes of the tensor that the bandwidth was measured with


@dataclass(frozen=True)
class RankReport:
    """How far a rank came: started | imported | store | joined | correct | measured."""

    rank: int
    host: str
    device: int  # -1 for a rank without a GPU
    phase: str
    backend: str = ""
    error: str = ""
    ended: bool = False
    tail: List[str] = field(default_factory=list)  # The end of its stderr
    log: List[str] = field(default_factory=list)  # Telling lines of NCCL's log


@dataclass(frozen=True)
class PairReport:
    """An all-reduce between two nodes alone, tried after one of all nodes failed."""

    first: str
    second: str
    backend: str
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class FabricReport:
    """Everything the gate saw, whether it went well or not."""

    seconds: float
    # The step that ended the gate: arrive | places | crossings | import | store | gloo | the
    # backend between GPUs, such as nccl | gate (Ray was not joined) | time (it took too long).
    failed: str = ""
    error: str = ""
    # Nodes on which Ray started no process in time, and why.
    absent: Dict[str, str] = field(default_factory=dict)
    seen: List[SeenNode] = field(default_factory=list)
    crossings: List[Crossing] = field(default_factory=list)
    collectives: List[Collective] = field(default_factory=list)
    ranks: List[RankReport] = field(default_factory=list)
    pairs: List[PairReport] = field(default_factory=list)
    # When time ran out, by host: the ranks that had not come as far as they must; no rank where
    # the host itself was waited for.
    awaited: Dict[str, List[int]] = field(default_factory=dict)
    timeline: Dict[str, float] = field(default_factory=dict)  # Seconds that each step took
