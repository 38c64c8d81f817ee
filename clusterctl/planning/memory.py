"""Plan the memory of one layout: the use of every rank, and the rest for the KV cache.

vLLM splits layers evenly over pipeline stages and then limits every rank to the number of blocks of
the rank with the fewest. Where GPUs differ, `best_split` searches for the split
(VLLM_PP_LAYER_PARTITION) that maximises this number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

from clusterctl.models.shape import ModelShape
from clusterctl.models.version import show_version
from clusterctl.planning.adapters import adapter_bytes, is_compared
from clusterctl.planning.compressed_cache import plan_compressed_cache
from clusterctl.planning.hardware import SHARES_MEMORY
from clusterctl.planning.kv_cache import (
    CachePlan,
    CacheRules,
    capacity,
    longest_that_fits,
    needs_of,
    plan_cache,
)
from clusterctl.planning.options import ServeOptions, Settings, settings_key, settle
from clusterctl.planning.overheads import (
    Exchange,
    activation_gib,
    graphs_gib,
    margin_gib,
    runtime_gib,
)
from clusterctl.planning.placement import Placement, RankSeat, split_layers, stages_of
from clusterctl.planning.rules import Rules
from clusterctl.planning.weights import PipelineStage, weight_bytes
from clusterctl.units import GIB

Verdict = Literal["fits", "may not fit", "does not fit"]

# Share by which the bytes of a token may be off if the architecture is unknown.
_UNKNOWN_CACHE = 2.0


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of one rank. Sizes in GiB."""

    host: str
    gpu: str
    stage: int
    place: int
    layers: int
    memory_gib: float
    usable_gib: float  # Limit for vLLM: the GPU's memory times the utilisation
    weights_gib: float  # With `adapters_gib`, as vLLM's log has them
    adapters_gib: float  # Room for adapters
    activation_gib: float
    runtime_gib: float
    cuda_graphs_gib: float  # Part of `usable_gib` from vLLM 0.21 on, in addition to it before
    kv_cache_gib: float  # Negative if that much is missing
    margin_gib: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Limit:
    """The rank with the fewest blocks, which limits all, and the memory unused on the others."""

    rank: int
    host: str
    gpu: str
    reason: str
    unused_gib: float


@dataclass(frozen=True)
class FitPlan:
    """The forecast for one replica.

    `fits` is the best estimate. `verdict` is `may not fit` if the estimate is within the
    margin of error of fitting, on either side.
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
    longest_context: int  # Tokens of the longest request that the cache holds
    fits: bool
    verdict: Verdict
    limited_by: Limit
    partition: tuple[int, ...]
    least_tokens: int  # In the KV cache, if memory is off by the margin of error
    most_tokens: int
    # Blocks for the states of requests, at least and at most; None if a start does not depend on it
    state_blocks: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the stable form of `fit --json`, whose keys docs/fit.md lists."""
        return {
            "model": self.model,
            "architecture": self.architecture,
            "vllm": self.vllm,
            "fits": self.fits,
            "verdict": self.verdict,
            "kv_cache_tokens": self.kv_cache_tokens,
            "kv_cache_tokens_range": [self.least_tokens, self.most_tokens],
            "max_concurrency": round(self.max_concurrency, 2),
            "max_model_len": self.settings.max_model_len,
            "longest_context": self.longest_context,
            "limited_by": rounded(self.limited_by),
            "tp": self.placement.tp,
            "pp": self.placement.pp,
            "dp": self.placement.replicas,
            "layer_partition": list(self.partition),
            "max_num_seqs": self.settings.batch.requests,
            "max_num_batched_tokens": self.settings.batch.tokens,
            "gpu_memory_utilization": self.settings.utilization,
            "reason": self.placement.reason,
            "ranks": [rounded(rank) for rank in self.ranks],
            "notes": list(self.notes),
        }


def rounded(one: Any) -> dict[str, Any]:
    """Return the fields of a dataclass for JSON, with floats in four decimals."""
    found = {each.name: getattr(one, each.name) for each in fields(one)}
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}


_UNTOLD_CPU_CACHE = 4 * GIB
_UNTOLD_CPU_NOTE = "VLLM_CPU_KVCACHE_SPACE is not set: a KV cache of 4 GiB is assumed on CPUs"

# vLLM measures free memory, which the host's programs and its page cache use too on GB10: profiles
# of CUDA graphs were between -4.7 and +6.2 GiB (vllm-project/vllm#46462,
# eugr/spark-vllm-docker#200), and a cache 12.7 GiB smaller than forecast
# (eugr/spark-vllm-docker#396).
_SHARED_MEMORY_SPREAD = 12.7

# With 1024 requests a batch, a model that keeps states had 8 and 10 GiB less than forecast in a
# build of 0.27 on an RTX PRO 6000 (vllm-project/recipes#831). With 256, or in 0.21, it had about
# what was forecast (#810, #551).
_MANY_REQUESTS = 256
_MANY_STATES_SPREAD = 8.0

_ASSUMED_MEMORY_SHARE = 0.02  # Error of a GPU memory figure that was not read from PyTorch


@dataclass(frozen=True, slots=True)
class _Case:
    """All inputs of a calculation, with defaults and layout decided."""

    shape: ModelShape
    placement: Placement
    options: ServeOptions
    settings: Settings
    rules: Rules
    cache: CachePlan
    stages: tuple[PipelineStage, ...]

    def block_bytes(self, stage: int) -> int:
        """Return the bytes of a KV cache block on a rank of that stage."""
        return self.cache.block_bytes(self.stages[stage].first, self.stages[stage].last)

    def is_eager(self, seat: RankSeat) -> bool:
        """Return whether that rank captures no CUDA graphs."""
        return self.options.enforce_eager or seat.gpu.is_cpu

    @property
    def shares_experts(self) -> bool:
        """Whether data parallel replicas divide the experts among them."""
        return (self.options.dp or 1) > 1 and any(layer.experts for layer in self.shape.layers)

    @property
    def exchange(self) -> Exchange | None:
        """Where replicas exchange the tokens of experts that they divide."""
        if not self.shares_experts:
            return None
        ranks = (self.options.dp or 1) * self.placement.tp * self.placement.pp
        return "in a host" if ranks <= self.placement.room else "over hosts"

    @property
    def needs_block_per_request(self) -> bool:
        """Whether vLLM refuses more requests in a batch than blocks."""
        eager = self.options.enforce_eager or self.placement.seats[0].gpu.is_cpu
        return self.cache.has_states and self.rules.needs_block_per_request and not eager

    @property
    def charges_graphs(self) -> bool:
        """Whether vLLM deducts CUDA graphs from the KV cache's share."""
        return self.rules.charges_graphs(second_runner=self.settings.second_runner)


def plan_memory(
    shape: ModelShape, placement: Placement, options: ServeOptions, rules: Rules
) -> FitPlan:
    """Predict the figures that vLLM will report for this model on these ranks.

    Raises UsageError if the layers cannot be split as requested. `problems.predict_problems` finds
    anything else that vLLM would refuse.
    """
    if options.language_model_only:
        shape = replace(shape, tower=None)
    if options.drafter in OF_THE_MODEL and placement.pp == 1:
        shape = _with_drafter(shape, placement.tp)
    head = placement.seats[0].gpu
    if head.is_cpu and options.kv_cache_bytes is None:
        options = replace(options, kv_cache_bytes=_UNTOLD_CPU_CACHE)
        shape = replace(shape, assumptions=(*shape.assumptions, _UNTOLD_CPU_NOTE))
    settings = settle(shape, options, rules, head, placement.tp, placement.pp)
    seats = tuple(_with_own_lessons(seat, settings) for seat in placement.seats)
    partition = placement.partition or options.partition
    placement = replace(placement, seats=seats, partition=partition)
    stages = stages_of(len(shape.layers), placement)
    cache = cache_plan(shape, settings.cache, placement.tp)
    case = _Case(shape, placement, options, settings, rules, cache, stages)
    known: dict[tuple[object, ...], RankMemory] = {}  # equal seats of a stage are calculated once
    ranks = []
    for seat in placement.seats:
        kind = (seat.stage, seat.gpu, seat.measured, seat.place == 0)
        if kind not in known:
            known[kind] = _rank(case, seat)
        ranks.append(replace(known[kind], host=seat.host, place=seat.place))
    return _judge(case, tuple(ranks))


# Methods of --speculative-config whose layers are in the model's own checkpoint.
OF_THE_MODEL = frozenset(
    {
        "mtp",
        "deepseek_mtp",
        "ernie_mtp",
        "glm4_moe_mtp",
        "mimo_mtp",
        "nemotron_h_mtp",
        "qwen3_next_mtp",
        "qwen3_5_mtp",
    }
)


def _with_drafter(shape: ModelShape, tp: int) -> ModelShape:
    """Return the model with its layers of multi-token prediction: each is like its last layer with
    attention, and joins the hidden state with the embedding of the next token."""
    like = [layer for layer in shape.layers if layer.attention]
    if not like or not shape.drafters:
        return shape
    # A matrix of hidden x 2 hidden is as large as so many norms.
    joining = 2 * shape.hidden // (tp if shape.splits_drafter else 1)
    one = replace(like[-1], norms=like[-1].norms + 3 + joining)
    more = [one]
    if not one.mlp and not one.experts:  # attention and experts in layers of their own (Nemotron-H)
        more += [layer for layer in shape.layers if layer.experts][-1:]
    return replace(shape, layers=(*shape.layers, *more))


def _with_own_lessons(seat: RankSeat, settings: Settings) -> RankSeat:
    """Return the seat without figures from starts with different settings."""
    known = seat.measured.settings if seat.measured else ""
    if known in ("", settings_key(settings)):
        return seat
    return replace(seat, measured=None)


@lru_cache(maxsize=256)
def cache_plan(shape: ModelShape, rules: CacheRules, tp: int) -> CachePlan:
    """Return the groups of the KV cache, which many layouts share; none for an encoder."""
    if shape.encoder:
        return CachePlan((), 0, (0,) * len(shape.layers))
    if any(attention.compressed for attention in shape.attentions):
        return plan_compressed_cache(shape.layers, rules.shared_context)
    return plan_cache(needs_of(shape.layers, tp, rules), rules)


def _rank(case: _Case, seat: RankSeat) -> RankMemory:
    stage, tp = case.stages[seat.stage], case.placement.tp
    weights = (
        weight_bytes(
            case.shape,
            stage,
            case.settings.quantization,
            int(case.options.cpu_offload_gib * GIB),
            unsplit=case.rules.unsplit_weights,
            replicas=case.options.dp or 1,
            by_number=case.options.expert_parallel,
        )
        / GIB
    )
    room, by_number = case.options.adapter_room, case.options.expert_parallel
    adapters = adapter_bytes(case.shape, stage, room, by_number=by_number) / GIB if room else 0.0
    weights += adapters
    activation = activation_gib(
        case.shape,
        stage,
        case.settings.batch,
        case.rules,
        seat.gpu,
        case.settings.sampler,
        compiles=case.rules.tunes_kernels and not case.is_eager(seat),
        first_rank=seat.place == 0,
        sharing=(case.options.dp or 1) if case.shares_experts else 1,
    )
    group, fabric = tp, case.placement.fabric
    if fabric == "nvlink" and not case.options.multicast:
        fabric = "nvlink-plain"
    if case.shares_experts:
        # Tokens are exchanged with the other replicas in each layer, inside CUDA graphs too.
        group, fabric = tp * (case.options.dp or 1), "network" if tp == 1 else fabric
    runtime = runtime_gib(case.rules, group, fabric, seat.measured)
    graphs = graphs_gib(
        group,
        case.settings.batch.requests,
        eager=case.is_eager(seat),
        exchanging=case.exchange,
        measured=seat.measured,
    )
    usable = seat.gpu.memory_gib * case.settings.utilization
    charged = graphs if case.charges_graphs else 0.0
    left, margin = usable - weights - activation - runtime - charged, 0.0
    if case.options.kv_cache_bytes is not None:
        left = case.options.kv_cache_bytes / GIB
    else:
        margin = margin_gib(
            fabric,
            charged=case.charges_graphs and not case.is_eager(seat),
            unknown=bool(case.shape.assumptions),
            weights_gib=weights,
            measured=seat.measured,
        )
        if seat.gpu.name == SHARES_MEMORY and case.charges_graphs:
            margin += _SHARED_MEMORY_SPREAD
        many = case.settings.batch.requests > _MANY_REQUESTS
        if many and case.needs_block_per_request and case.rules.crowds_states:
            margin += _MANY_STATES_SPREAD
        margin += _ASSUMED_MEMORY_SHARE * seat.gpu.memory_gib if seat.gpu.assumed else 0.0
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
        adapters_gib=adapters,
        activation_gib=activation,
        runtime_gib=runtime,
        cuda_graphs_gib=graphs,
        kv_cache_gib=left,
        margin_gib=margin,
        blocks=max(0, int(left * GIB) // block) if block else 0,
    )


def _adapters_note(case: _Case, ranks: Sequence[RankMemory]) -> tuple[str, ...]:
    room = case.options.adapter_room
    if room is None:
        return ()
    size = max(rank.adapters_gib for rank in ranks)
    proven = "" if is_compared(case.shape) else ", by vLLM's code and not compared with a start"
    return (
        f"adapters: --max-loras {room.slots} of rank {room.rank} take {size:.2f} GiB of each GPU, "
        f"counted with the weights{proven}",
    )


def _judge(case: _Case, ranks: tuple[RankMemory, ...]) -> FitPlan:
    settings, in_flight = case.settings, case.settings.in_flight
    blocks = min((rank.blocks for rank in ranks if rank.layers), default=0)
    longest = _longest(case, ranks, blocks)
    if settings.automatic_length and longest:
        settings = replace(settings, max_model_len=longest)
    found = capacity(case.cache, blocks, settings.max_model_len, in_flight, case.rules)
    # Graphs that vLLM does not deduct are allocated in addition to what it may use.
    graphs_fit = (
        case.charges_graphs
        or case.options.kv_cache_bytes is not None
        or all(rank.usable_gib + rank.cuda_graphs_gib <= rank.memory_gib for rank in ranks)
    )
    # Each request of a batch needs a block for its state, which vLLM checks when graphs are made.
    states = None
    if case.needs_block_per_request:
        states = (_blocks_if_off(case, ranks, -1), _blocks_if_off(case, ranks, 1))
    states_fit = states is None or blocks >= settings.batch.requests
    fits = longest >= settings.max_model_len and graphs_fit and states_fit
    # What every rank has beyond the need of one request of full length.
    need = case.cache.blocks_per_request(settings.max_model_len, in_flight)
    block_gib = [case.block_bytes(rank.stage) / GIB for rank in ranks]
    compared = [_block_compared(case, rank) / GIB for rank in ranks]
    slack = [rank.kv_cache_gib - need * block for rank, block in zip(ranks, compared, strict=True)]
    verdict: Verdict = "fits" if fits else "may not fit"
    for rank, left in zip(ranks, slack, strict=True):
        if left < -rank.margin_gib:
            verdict = "does not fit"
        elif left < rank.margin_gib and verdict == "fits":
            verdict = "may not fit"
    if states and states[1] < settings.batch.requests:
        verdict = "does not fit"
    elif states and states[0] < settings.batch.requests and verdict == "fits":
        verdict = "may not fit"
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
        verdict=verdict,
        limited_by=limit_of(ranks, blocks, block_gib),
        partition=tuple(stage.last - stage.first for stage in case.stages),
        least_tokens=_tokens_if_off(case, ranks, settings.max_model_len, -1),
        most_tokens=_tokens_if_off(case, ranks, settings.max_model_len, 1),
        state_blocks=states,
        notes=(*case.rules.notes, *case.shape.assumptions, *_adapters_note(case, ranks)),
    )


def limit_of(ranks: Sequence[RankMemory], blocks: int, block_gib: Sequence[float]) -> Limit:
    """Return the rank that limits all to that many blocks, of `block_gib` on each rank."""
    index = min(range(len(ranks)), key=lambda i: (ranks[i].blocks, ranks[i].kv_cache_gib))
    poorest = ranks[index]
    if poorest.kv_cache_gib <= 0:
        more = -poorest.kv_cache_gib
        reason = f"weights and overhead exceed what vLLM may use by {more:.2f} GiB"
    else:
        use = " for the KV cache" if any(block_gib) else ""
        reason = f"{poorest.kv_cache_gib:.2f} GiB are left there{use}"
    unused = [
        max(0.0, rank.kv_cache_gib - blocks * block)
        for rank, block in zip(ranks, block_gib, strict=True)
    ]
    del unused[index]
    return Limit(index, poorest.host, poorest.gpu, reason, sum(unused))


def _block_compared(case: _Case, rank: RankMemory) -> int:
    """Return the bytes of a block with which vLLM checks a rank's memory before it starts."""
    if case.rules.compares_whole_model:
        return case.cache.block_bytes(0, len(case.shape.layers))
    return case.block_bytes(rank.stage)


def _longest(case: _Case, ranks: Sequence[RankMemory], blocks: int) -> int:
    """Return the longest request that vLLM starts with."""
    settings = case.settings
    if case.shape.encoder and any(rank.kv_cache_gib < 0 for rank in ranks):
        return 0
    if case.rules.compares_whole_model:
        sizes = [(_block_compared(case, rank), rank) for rank in ranks if rank.layers]
        whole = [int(rank.kv_cache_gib * GIB) // size for size, rank in sizes if size]
        blocks = max(0, min(whole, default=0))
    return longest_that_fits(
        case.cache, blocks, settings.max_model_len, settings.in_flight, case.rules
    )


def _blocks_if_off(case: _Case, ranks: Sequence[RankMemory], sign: int) -> int:
    """Return the cache's blocks if each rank has its margin of error more, or less."""
    blocks = []
    for rank in ranks:
        size = case.block_bytes(rank.stage)
        left = int((rank.kv_cache_gib + sign * rank.margin_gib) * GIB)
        if rank.layers and size:
            blocks.append(max(0, left) // size)
    return min(blocks, default=0)


def _tokens_if_off(case: _Case, ranks: Sequence[RankMemory], length: int, sign: int) -> int:
    fewest = _blocks_if_off(case, ranks, sign)
    tokens = capacity(case.cache, fewest, length, case.settings.in_flight, case.rules).tokens
    unknown = _UNKNOWN_CACHE if case.shape.assumptions else 1.0
    return int(tokens * unknown**sign)


_MOVES = 12  # Moves from the proportional split, which is rarely off by more than two layers

# A split of our own must hold 5 % more than vLLM's to justify setting a variable.
_WORTH_IT = 1.05


def best_split(
    shape: ModelShape, placement: Placement, options: ServeOptions, rules: Rules
) -> FitPlan:
    """Return the plan of the layer split with the most KV cache blocks; vLLM's own split if all
    GPUs are of one kind, or if the gain is below _WORTH_IT."""

    def split(partition: Sequence[int]) -> FitPlan:
        cut = replace(placement, partition=tuple(partition))
        return plan_memory(shape, cut, options, rules)

    plain = plan_memory(shape, placement, options, rules)
    kinds = {(seat.gpu.name, seat.gpu.memory_gib) for seat in placement.seats}
    if placement.partition or options.partition or len(kinds) == 1 or placement.pp == 1:
        return plain
    best = split(_proportional(shape, plain))
    for _ in range(_MOVES):
        # Move a single layer away from the limiting stage, for as long as that helps.
        poorest = best.ranks[best.limited_by.rank].stage
        moved = []
        for other in range(placement.pp):
            counts = list(best.partition)
            if other != poorest and counts[poorest] > 1:
                counts[poorest] -= 1
                counts[other] += 1
                moved.append(split(counts))
        better = max(moved, key=_score, default=best)
        if _score(better) <= _score(best):
            break
        best = better
    if plain.fits and _score(best)[0] < _WORTH_IT * _score(plain)[0]:
        return plain
    return max(best, plain, key=_score)


def _proportional(shape: ModelShape, plain: FitPlan) -> tuple[int, ...]:
    """Split the layers in proportion to the room of each stage for weights and cache together, with
    at least one layer each. The stage with the most room takes the rest."""
    room = []
    for stage in range(plain.placement.pp):
        ranks = [rank for rank in plain.ranks if rank.stage == stage]
        layer = max(rank.weights_gib for rank in ranks) / max(1, ranks[0].layers)
        free = min(rank.kv_cache_gib + rank.layers * layer for rank in ranks)
        room.append(max(free, 0.0))
    total, whole = len(shape.layers), sum(room)
    if whole <= 0:
        return split_layers(total, len(room))
    counts = [max(1, int(total * free / whole)) for free in room]
    largest = max(range(len(counts)), key=counts.__getitem__)
    counts[largest] += total - sum(counts)
    return tuple(counts)


def _score(plan: FitPlan) -> tuple[int, float]:
    """Rank plans by the blocks of the limiting rank; if none, by the least missing memory."""
    return (
        min(rank.blocks for rank in plan.ranks),
        min(rank.kv_cache_gib for rank in plan.ranks),
    )
