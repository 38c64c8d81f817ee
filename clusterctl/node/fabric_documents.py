"""Input and output of the fabric gate: data passed between the controller, the head and the ranks.

`python3 node.pyz fabric` on the head takes a FabricSpec on stdin and prints JSON lines: `{"say":
TEXT}` while it works, `{"report": FabricReport}` at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List

from clusterctl.node.documents import ExpectedNode


@dataclass(frozen=True)
class GpuBackend:
    """PyTorch's names of the GPU device and its collectives; empty on a cluster without GPUs."""

    device: str = ""  # Such as `cuda`: a module of torch, and the prefix of its devices
    collectives: str = ""  # Such as `nccl`: the backend of torch.distributed


@dataclass(frozen=True)
class FabricSpec:
    """The nodes whose connections the gate proves."""

    nodes: List[ExpectedNode]
    # Empty: one rank per node, on its CPUs, even if it has GPUs.
    gpu_backend: GpuBackend = field(default_factory=GpuBackend)


@dataclass(frozen=True)
class SeenNode:
    """A node's network environment, as seen by a process that Ray started on it."""

    host: str
    env: Dict[str, str]  # The variables that select interfaces and transports, unchanged


@dataclass(frozen=True)
class Collective:
    """An all-reduce over all ranks of one backend that returned the right result."""

    backend: str  # `gloo`, or the GPUs' own, such as `nccl`
    ranks: int
    hosts: int
    # Bytes/s that cross each host's link, at least: 2 (n - 1) / n x size / time with n hosts, or
    # with n ranks on a single host. With one rank per host this is the bus bandwidth of
    # nccl-tests; with several, NCCL reduces inside the hosts first, and theirs can exceed the
    # link's rate.
    bandwidth: float
    latency: float  # Seconds of an all-reduce of 8 bytes
    size: int  # Bytes of the tensor that the bandwidth was measured with


@dataclass(frozen=True)
class RankReport:
    """The last phase of a rank: started | imported | store | joined | correct | measured | done."""

    rank: int
    host: str
    device: int  # -1 for a rank without a GPU
    phase: str
    backend: str = ""
    error: str = ""
    tail: List[str] = field(default_factory=list)  # The last lines of its stderr
    log: List[str] = field(default_factory=list)  # The relevant lines of NCCL's log


@dataclass(frozen=True)
class PairReport:
    """An all-reduce between two nodes, tried after one of all nodes failed."""

    first: str
    second: str
    backend: str
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class FabricReport:
    """All observations of the gate, whether it passed or not."""

    seconds: float
    # The step that failed: arrive | import | store | gloo | the GPUs' backend, such as nccl | gate
    # (could not join Ray) | time (the gate took too long).
    failed: str = ""
    error: str = ""
    # Nodes on which Ray did not start a process in time, with the error.
    absent: Dict[str, str] = field(default_factory=dict)
    seen: List[SeenNode] = field(default_factory=list)
    collectives: List[Collective] = field(default_factory=list)
    ranks: List[RankReport] = field(default_factory=list)
    pairs: List[PairReport] = field(default_factory=list)
    # When time ran out, by host: the ranks that had not reached the awaited phase; none if the gate
    # was still waiting for the host itself.
    awaited: Dict[str, List[int]] = field(default_factory=dict)
