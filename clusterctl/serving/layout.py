"""How a model is cut over the cluster's GPUs, and why: tensor and pipeline parallel sizes.

Tensor parallel ranks talk to each other in every layer, pipeline stages once per stage, so the
former belong inside a host. Measured on two H200 over a 4 GB/s link (docs/serving.md): PP 2
reached half, TP 2 a seventh of the throughput of one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError, DoesNotFit, UsageError, raise_all
from clusterctl.models.counts import Shape

Fits = Callable[[int, int], bool]
"""Whether the model fits in memory with that TP and PP."""


@dataclass(frozen=True)
class HostGpus:
    """One host's GPUs that nothing uses, or that the service about to be replaced uses: else
    serving it again would find another layout."""

    host: str
    free: int


@dataclass(frozen=True)
class Layout:
    """A cut that this cluster can hold."""

    tensor_parallel: int
    pipeline_parallel: int
    hosts: tuple[str, ...]
    """Hosts whose GPUs are offered to it; at least `least_hosts` of them get ranks."""
    least_hosts: int
    keeps_tp_in_host: bool
    """Every tensor parallel group surely sits inside one host."""
    reason: str
    notes: tuple[str, ...] = ()
    data_parallel: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def spans_hosts(self) -> bool:
        return self.least_hosts > 1


def plan_layout(
    shape: Shape | None,
    gpus: Sequence[HostGpus],
    *,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    data_parallel: int = 1,
    fits: Fits | None = None,
) -> Layout:
    """The layout that was asked for, or a good one where sizes are left open.

    `shape` None (no config.json seen) skips what depends on it. Raises UsageError for sizes
    that the model's shape forbids and DoesNotFit for more ranks than free GPUs, all at once.
    """
    if tensor_parallel is None and pipeline_parallel is None:
        tp, pp, reason = _choose(shape, gpus, data_parallel, fits)
    else:
        tp, pp = tensor_parallel or 1, pipeline_parallel or 1
        reason = "as asked"
    raise_all(_problems(shape, gpus, tp, pp, data_parallel))
    return _layout(shape, gpus, (tp, pp, data_parallel), reason)


def tensor_sizes(shape: Shape | None, most: int) -> tuple[int, ...]:
    """The tensor parallel sizes from 1 to `most` that the model can be cut into.

    vLLM wants TP to divide the attention heads (vllm/config/model.py), and the key/value heads
    to be divided by it or, when there are fewer, to divide it (they are then copied).
    """
    return tuple(
        size for size in range(1, most + 1) if shape is None or not _tp_problem(shape, size)
    )


def _tp_problem(shape: Shape, size: int) -> str | None:
    if shape.attention_heads % size:
        return f"does not divide the model's {shape.attention_heads} attention heads"
    for heads in shape.kv_heads:
        if max(heads, size) % min(heads, size):
            return f"does not go into the model's {heads} key/value heads, nor they into it"
    return None


def _choose(
    shape: Shape | None, gpus: Sequence[HostGpus], copies: int, fits: Fits | None
) -> tuple[int, int, str]:
    """The smallest layout that fits, when memory is known; else one GPU for an encoder, and all
    for others."""
    if shape and shape.encoder:
        return 1, 1, "an encoder is small, and vLLM cuts it into no stages"
    offered = [host for host in gpus if host.free]
    most = max((host.free for host in offered), default=1)
    sizes = tensor_sizes(shape, most)
    if fits is None:
        return _all_gpus(shape, offered, sizes, copies)
    for size in sizes:
        if fits(size, 1):
            return size, 1, _small_reason(size)
    for stages in range(2, _most_stages(shape, offered) + 1):
        for size in sizes:
            if fits(size, stages) and size * stages * copies <= _total(gpus):
                reason = f"too large for one host: {stages} stages of {size} GPUs"
                return size, stages, reason
    raise DoesNotFit(
        f"the model does not fit in the memory of this cluster's {_total(gpus)} free GPUs",
        hint="clusterctl fit MODEL shows what is missing, and which GPUs would do",
    )


def _small_reason(size: int) -> str:
    if size == 1:
        return "fits on one GPU, where it is fastest per GPU"
    return f"fits on {size} GPUs of one host, so that every layer's exchange stays inside it"


def _all_gpus(
    shape: Shape | None, offered: Sequence[HostGpus], sizes: Sequence[int], copies: int
) -> tuple[int, int, str]:
    """TP over the GPUs of a host, PP over the hosts that have as many."""
    smallest = min((host.free for host in offered), default=1)
    size = max(size for size in sizes if size <= smallest)
    stages = max(1, min(len(offered) // copies, shape.layers if shape else len(offered)))
    inside = "one GPU per host" if size == 1 else f"{size} GPUs of each host as one group"
    if stages == 1:
        return size, 1, f"tensor parallel over {size} GPU{'s' * (size > 1)} of one host"
    return size, stages, f"{inside}, {stages} hosts as stages: only stages talk over the network"


def _most_stages(shape: Shape | None, offered: Sequence[HostGpus]) -> int:
    total = sum(host.free for host in offered)
    return min(total, shape.layers) if shape else total


def _total(gpus: Sequence[HostGpus]) -> int:
    return sum(host.free for host in gpus)


def _problems(
    shape: Shape | None, gpus: Sequence[HostGpus], tp: int, pp: int, dp: int
) -> list[ClusterctlError]:
    found: list[ClusterctlError] = []
    reason = _tp_problem(shape, tp) if shape else None
    if shape and reason:
        sizes = ", ".join(str(size) for size in tensor_sizes(shape, max(tp, 8)))
        found.append(UsageError(f"--tp {tp} {reason}", hint=f"sizes that work: --tp {sizes}"))
    if shape and pp > shape.layers:
        found.append(
            UsageError(
                f"--pp {pp} is more than the model's {shape.layers} layers", hint="lower --pp"
            )
        )
    if tp * pp * dp > _total(gpus):
        found.append(_too_many(shape, gpus, tp, pp, dp))
    return found


def _too_many(
    shape: Shape | None, gpus: Sequence[HostGpus], tp: int, pp: int, dp: int
) -> DoesNotFit:
    total = _total(gpus)
    asked = " ".join(f"--{n} {v}" for n, v in (("tp", tp), ("pp", pp), ("dp", dp)) if v > 1)
    have = ", ".join(f"{host.host} {host.free}" for host in gpus)
    nearest = max(tensor_sizes(shape, total), default=0)
    return DoesNotFit(
        f"{asked} needs {tp * pp * dp} GPUs and this cluster has {total} free ({have})",
        hint=f"--tp {nearest} works" if nearest else "clusterctl status shows who uses the GPUs",
    )


def _layout(
    shape: Shape | None, gpus: Sequence[HostGpus], sizes: tuple[int, int, int], reason: str
) -> Layout:
    tp, pp, dp = sizes
    ranks = tp * pp * dp
    free = sorted((host.free for host in gpus if host.free), reverse=True)
    least = _least_hosts(free, ranks)
    keeps = tp == 1 or least == 1 or _groups_stay_inside(free, tp, ranks)
    return Layout(
        tensor_parallel=tp,
        pipeline_parallel=pp,
        data_parallel=dp,
        hosts=tuple(host.host for host in gpus if host.free),
        least_hosts=least,
        keeps_tp_in_host=keeps,
        reason=reason,
        notes=tuple(_notes(shape, tp, keeps)),
    )


def _least_hosts(free: Sequence[int], ranks: int) -> int:
    """How many hosts Ray needs when it packs (strategy PACK) the fullest first."""
    for count in range(1, len(free) + 1):
        if sum(free[:count]) >= ranks:
            return count
    return len(free)


def _groups_stay_inside(free: Sequence[int], tp: int, ranks: int) -> bool:
    """Ranks are handed out host by host, TP fastest: groups stay whole when every host is
    filled and holds a whole number of them."""
    return sum(free) == ranks and all(count % tp == 0 for count in free)


def _notes(shape: Shape | None, tp: int, keeps: bool) -> list[str]:
    notes = []
    if not keeps:
        notes.append(
            "tensor parallel ranks sit on different hosts and exchange data in every layer: "
            "on ordinary networks --pp is several times faster"
        )
    if shape and shape.kv_heads and tp > min(shape.kv_heads):
        notes.append(
            f"the model has {min(shape.kv_heads)} key/value heads: with --tp {tp} each is kept on "
            "several GPUs, so the KV cache does not get smaller per GPU beyond that"
        )
    return notes
