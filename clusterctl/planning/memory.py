"""The arithmetic for one layout: what every rank's memory holds, what is left for the KV cache,
what limits; and its result, with a stable JSON form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from clusterctl.models.shape import ModelShape
from clusterctl.models.version import show_version
from clusterctl.planning.activations import Profile, activation_gib
from clusterctl.planning.allocator import GIB
from clusterctl.planning.kv_cache import (
    CachePlan,
    capacity,
    longest_that_fits,
    needs_of,
    plan_cache,
)
from clusterctl.planning.options import ServeOptions
from clusterctl.planning.overheads import graphs_gib, margin_gib, runtime_gib
from clusterctl.planning.placement import Placement, RankSeat, stages_of
from clusterctl.planning.rules import Rules
from clusterctl.planning.settings import Settings, settle
from clusterctl.planning.weights import PipelineStage, weight_gib

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank. Sizes in GiB. `kv_cache_gib` may be negative: so much is missing.

    `usable_gib` is what vLLM may use: the GPU's memory times the utilisation. `cuda_graphs_gib`
    is taken from it from vLLM 0.21 on, and comes on top of it before.
    """

    host: str
    gpu: str
    stage: int
    place: int
    layers: int
    memory_gib: float
    usable_gib: float
    weights_gib: float
    activation_gib: float
    runtime_gib: float
    cuda_graphs_gib: float
    kv_cache_gib: float
    margin_gib: float
    blocks: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, GiB rounded to 4 digits."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in found.items()
        }


@dataclass(frozen=True, slots=True)
class Limit:
    """The rank that decides how many blocks all ranks get, and what others leave unused."""

    rank: int
    host: str
    gpu: str
    reason: str
    unused_gib: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "rank": self.rank,
            "host": self.host,
            "gpu": self.gpu,
            "reason": self.reason,
            "unused_gib": round(self.unused_gib, 4),
        }


@dataclass(frozen=True)
class FitPlan:
    """A prediction for one replica. `longest_context`: the longest request that the cache holds.

    `verdict` is `tight` when the difference is smaller than the margin of error, whichever side
    the best estimate is on; `fits` is the best estimate.
    """

    model: str
    architecture: str
    vllm: str
    placement: Placement
    options: ServeOptions
    settings: Settings
    ranks: tuple[RankMemory, ...]
    kv_cache_tokens: int
    max_concurrency: float
    longest_context: int
    fits: bool
    verdict: Verdict
    limited_by: Limit
    partition: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The stable form of `fit --json`; docs/fit.md lists its keys."""
        return {
            "model": self.model,
            "architecture": self.architecture,
            "vllm": self.vllm,
            "fits": self.fits,
            "verdict": self.verdict,
            "kv_cache_tokens": self.kv_cache_tokens,
            "max_concurrency": round(self.max_concurrency, 2),
            "max_model_len": self.settings.max_model_len,
            "longest_context": self.longest_context,
            "limited_by": self.limited_by.to_json(),
            "tp": self.placement.tp,
            "pp": self.placement.pp,
            "dp": self.placement.replicas,
            "layer_partition": list(self.partition),
            "max_num_seqs": self.settings.batch.requests,
            "max_num_batched_tokens": self.settings.batch.tokens,
            "gpu_memory_utilization": self.settings.utilization,
            "reason": self.placement.reason,
            "ranks": [rank.to_json() for rank in self.ranks],
            "notes": list(self.notes),
        }


_UNTOLD_CPU_CACHE = 4 * GIB
_UNTOLD_CPU_NOTE = "VLLM_CPU_KVCACHE_SPACE is not set: a KV cache of 4 GiB is assumed on CPUs"

_ASSUMED_MEMORY_SHARE = 0.02  # How far a GPU's memory may be off that was not read from PyTorch


@dataclass(frozen=True, slots=True)
class _Case:
    """Everything a calculation needs, decided."""

    shape: ModelShape
    placement: Placement
    options: ServeOptions
    settings: Settings
    rules: Rules
    cache: CachePlan
    stages: tuple[PipelineStage, ...]

    def block_bytes(self, stage: int) -> int:
        """Bytes of a block of the KV cache on a rank of that stage."""
        return self.cache.block_bytes(self.stages[stage].first, self.stages[stage].last)

    def is_eager(self, seat: RankSeat) -> bool:
        """Whether that rank captures no CUDA graphs."""
        return self.options.enforce_eager or seat.gpu.is_cpu

    @property
    def charges_graphs(self) -> bool:
        """Whether vLLM takes CUDA graphs out of the cache's share."""
        return self.rules.charges_graphs(second_runner=self.settings.second_runner)


def plan_memory(
    shape: ModelShape, placement: Placement, options: ServeOptions, rules: Rules
) -> FitPlan:
    """Predict what vLLM will report with this model on these ranks.

    Raises UsageError when the layers cannot be split as asked. What vLLM would refuse for other
    reasons is `foreseen.foresee`'s to say: the arithmetic here goes through regardless.
    """
    if options.language_model_only:
        shape = replace(shape, tower=None)
    head = placement.seats[0].gpu
    if head.is_cpu and options.kv_cache_bytes is None:
        options = replace(options, kv_cache_bytes=_UNTOLD_CPU_CACHE)
        shape = replace(shape, assumptions=(*shape.assumptions, _UNTOLD_CPU_NOTE))
    settings = settle(shape, options, rules, head, placement.tp, placement.pp)
    placement = replace(placement, partition=placement.partition or options.partition)
    stages = stages_of(len(shape.layers), placement)
    cache = cache_plan(shape, settings, placement.tp)
    case = _Case(shape, placement, options, settings, rules, cache, stages)
    return _judge(case, _ranks(case))


def _ranks(case: _Case) -> tuple[RankMemory, ...]:
    """Every rank; equal seats of a stage are counted once."""
    known: dict[tuple[object, ...], RankMemory] = {}
    found = []
    for seat in case.placement.seats:
        kind = (seat.stage, seat.gpu, seat.measured, seat.place == 0)
        if kind not in known:
            known[kind] = _rank(case, seat)
        found.append(replace(known[kind], host=seat.host, place=seat.place))
    return tuple(found)


def cache_plan(shape: ModelShape, settings: Settings, tp: int) -> CachePlan:
    """The KV cache's groups with these settings."""
    attentions = [layer.attention for layer in shape.layers]
    needs = needs_of(attentions, tp, settings.element_bytes, whole=settings.whole_windows)
    return plan_cache(needs, settings.block_size)


def _rank(case: _Case, seat: RankSeat) -> RankMemory:
    stage, tp = case.stages[seat.stage], case.placement.tp
    weights = weight_gib(
        case.shape,
        stage,
        case.settings.quantization,
        case.options.cpu_offload_gib,
        unsplit=case.rules.unsplit_weights,
    )
    activation = _activation(case, seat)
    runtime = runtime_gib(case.rules, tp, case.placement.fabric, seat.measured)
    graphs = graphs_gib(tp, eager=case.is_eager(seat), measured=seat.measured)
    usable = seat.gpu.memory_gib * case.settings.utilization
    charged = graphs if case.charges_graphs else 0.0
    left = usable - weights - activation - runtime - charged
    if case.options.kv_cache_bytes is not None:
        left = case.options.kv_cache_bytes / GIB
    block = case.block_bytes(seat.stage)
    return RankMemory(
        host=seat.host,
        gpu=seat.gpu.name,
        stage=seat.stage,
        place=seat.place,
        layers=stage.last - stage.first,
        memory_gib=seat.gpu.memory_gib,
        usable_gib=usable,
        weights_gib=weights,
        activation_gib=activation,
        runtime_gib=runtime,
        cuda_graphs_gib=graphs,
        kv_cache_gib=left,
        margin_gib=_margin(case, seat, weights),
        blocks=max(0, int(left * GIB) // block) if block else 0,
    )


def _activation(case: _Case, seat: RankSeat) -> float:
    return activation_gib(
        case.shape,
        case.stages[seat.stage],
        case.settings.batch,
        case.rules,
        seat.gpu,
        Profile(
            case.settings.sampler,
            compiles=case.rules.tunes_kernels and not case.is_eager(seat),
        ),
        first_rank=seat.place == 0,
    )


def _margin(case: _Case, seat: RankSeat, weights: float) -> float:
    if case.options.kv_cache_bytes is not None:
        return 0.0
    found = margin_gib(
        case.placement.fabric,
        charged=case.charges_graphs and not case.is_eager(seat),
        unknown=bool(case.shape.assumptions),
        weights_gib=weights,
        measured=seat.measured,
    )
    return found + (_ASSUMED_MEMORY_SHARE * seat.gpu.memory_gib if seat.gpu.assumed else 0.0)


def _judge(case: _Case, ranks: tuple[RankMemory, ...]) -> FitPlan:
    settings, in_flight = case.settings, case.settings.in_flight
    blocks = min((rank.blocks for rank in ranks if rank.layers), default=0)
    longest = longest_that_fits(case.cache, blocks, settings.max_model_len, in_flight, case.rules)
    if settings.automatic_length and longest:
        settings = replace(settings, max_model_len=longest)
    found = capacity(case.cache, blocks, settings.max_model_len, in_flight, case.rules)
    fits = longest >= settings.max_model_len and _graphs_find_room(case, ranks)
    return FitPlan(
        model=case.shape.name,
        architecture=case.shape.architecture,
        vllm=show_version(case.rules.version),
        placement=case.placement,
        options=case.options,
        settings=settings,
        ranks=ranks,
        kv_cache_tokens=found.tokens,
        max_concurrency=found.concurrency,
        longest_context=longest,
        fits=fits,
        verdict=_verdict(case, settings.max_model_len, ranks, fits=fits),
        limited_by=_limit(case, ranks, blocks),
        partition=tuple(stage.last - stage.first for stage in case.stages),
        notes=(*case.rules.notes, *case.shape.assumptions),
    )


def _graphs_find_room(case: _Case, ranks: Sequence[RankMemory]) -> bool:
    """Graphs that vLLM leaves out of the sum come on top of what it may use, and must find
    room there."""
    if case.charges_graphs or case.options.kv_cache_bytes is not None:
        return True
    return all(rank.usable_gib + rank.cuda_graphs_gib <= rank.memory_gib for rank in ranks)


def _verdict(case: _Case, length: int, ranks: Sequence[RankMemory], *, fits: bool) -> Verdict:
    """Compare what one request of full length needs with what every rank has left."""
    need = case.cache.blocks_per_request(length, case.settings.in_flight)
    slack = [
        (rank.kv_cache_gib - need * case.block_bytes(rank.stage) / GIB, rank.margin_gib)
        for rank in ranks
    ]
    if any(left < -margin for left, margin in slack):
        return "does not fit"
    if not fits or any(left < margin for left, margin in slack):
        return "tight"
    return "fits"


def _limit(case: _Case, ranks: Sequence[RankMemory], blocks: int) -> Limit:
    index = min(range(len(ranks)), key=lambda i: (ranks[i].blocks, ranks[i].kv_cache_gib))
    rank = ranks[index]
    unused = sum(
        max(0.0, other.kv_cache_gib - blocks * case.block_bytes(other.stage) / GIB)
        for number, other in enumerate(ranks)
        if number != index
    )
    if rank.kv_cache_gib <= 0:
        reason = f"weights and overhead exceed what vLLM may use by {-rank.kv_cache_gib:.2f} GiB"
    else:
        reason = f"{rank.kv_cache_gib:.2f} GiB are left there for the KV cache"
    return Limit(index, rank.host, rank.gpu, reason, unused)
