"""A plan with the engine's own figures instead of the formulas'. Pure.

The engine computes the weights of each stage, the size of a block of the KV cache, and the blocks
of a request. What only a start can measure (activation peak, runtime, CUDA graphs) stays as
planned, and so does the room for adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterctl.planning.engine_answer import EngineAnswer
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.memory import FitPlan, RankMemory, Verdict, limit_of
from clusterctl.planning.placement import PARTITION
from clusterctl.planning.report import PlanRequest
from clusterctl.serving.vllm_flags import render, without
from clusterctl.units import GIB

_DECIDED = ("max-model-len", "tensor-parallel-size", "pipeline-parallel-size", "model", "tokenizer",
            "data-parallel-size", "distributed-executor-backend", "load-format")  # fmt: skip

# Loading changes weights after they are created: up to 2 % in what was compared with logs.
_LOADED = 0.02

_WORTH_SAYING = 0.1  # GiB


def question_for(
    plan: FitPlan, request: PlanRequest, *, directory: str, files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the input of `ask_vllm.py` for a plan: the first rank of each stage, on the GPU of the
    head."""
    placement, length = plan.placement, plan.settings.max_model_len
    gpu = placement.seats[0].gpu
    split = {PARTITION: ",".join(map(str, plan.partition))} if placement.pp > 1 else {}
    sizes = {"tensor": placement.tp, "pipeline": placement.pp, "data": request.options.dp or 1}
    asked = {
        "id": plan.model,
        "directory": directory,
        "files": dict(files),
        "arguments": [
            *render(without(request.arguments, _DECIDED)),
            f"--max-model-len={length}",
            *(f"--{name}-parallel-size={size}" for name, size in sizes.items() if size > 1),
        ],
        "env": {**request.hardware.env, **split},
        "ranks": [stage * placement.tp for stage in range(placement.pp)],
        "room": room_of(plan),
    }
    return {"gpu": None if gpu.is_cpu else described(gpu), "questions": [asked]}


def described(gpu: GpuModel) -> dict[str, Any]:
    """Return what `ask_vllm.py` needs to know about a GPU."""
    return {
        "capability": gpu.capability,
        "name": gpu.name,
        "bytes": int(gpu.memory_gib * GIB),
        "multiprocessors": gpu.multiprocessors,
    }


def room_of(plan: FitPlan) -> list[int]:
    """Return the bytes of each stage for weights and KV cache together; empty if the size of the
    cache is given."""
    if plan.options.kv_cache_bytes is not None:
        return []
    left: dict[int, int] = {}
    for rank in plan.ranks:
        room = int((rank.weights_gib - rank.adapters_gib + rank.kv_cache_gib) * GIB)
        left[rank.stage] = min(room, left.get(rank.stage, room))
    return [left[stage] for stage in sorted(left)]


def as_asked(plan: FitPlan, answer: EngineAnswer) -> FitPlan:
    """Return the plan with the engine's weights and cache, and the verdict that follows."""
    ranks = tuple(_rank(rank, plan, answer) for rank in plan.ranks)
    length, blocks = plan.settings.max_model_len, min(rank.blocks for rank in ranks)
    least = min(_blocks(rank, answer, -rank.margin_gib) for rank in ranks)
    most = min(_blocks(rank, answer, rank.margin_gib) for rank in ranks)
    states = any(group.keeps_state for group in answer.groups) and plan.state_blocks is not None
    needed = max(answer.blocks_for(length) + 1, plan.settings.batch.requests if states else 0)
    if not answer.requests:  # A model that caches nothing
        needed = 0
    sizes = answer.block_bytes or (0,) * plan.placement.pp
    block_gib = [sizes[rank.stage] / GIB for rank in ranks]
    verdict: Verdict = "may not fit"
    if least >= needed:
        verdict = "fits"
    elif most < needed:
        verdict = "does not fit"
    return replace(
        plan,
        ranks=ranks,
        vllm=answer.vllm,
        kv_cache_tokens=answer.tokens_in(blocks),
        least_tokens=answer.tokens_in(least),
        most_tokens=answer.tokens_in(most),
        max_concurrency=answer.tokens_in(blocks) / length,
        longest_context=min(length, answer.longest_in(blocks - 1)),
        state_blocks=(least, most) if states else None,
        fits=blocks >= needed,
        verdict=verdict,
        limited_by=limit_of(ranks, blocks, block_gib),
        notes=(*plan.notes, *_hosted(plan, answer)),
    )


def _hosted(plan: FitPlan, answer: EngineAnswer) -> tuple[str, ...]:
    """Tell of tables that ranks read in their host's memory, such as those of n-grams."""
    each = max(answer.hosted_gib, default=0.0)
    if each < _WORTH_SAYING:
        return ()
    return (
        f"each rank also keeps tables of {each:.1f} GiB in its host's memory, "
        f"{each * plan.placement.tp * plan.placement.pp:.0f} GiB in all",
    )


def _rank(rank: RankMemory, plan: FitPlan, answer: EngineAnswer) -> RankMemory:
    weights = answer.weights_gib[rank.stage] + rank.adapters_gib  # The engine makes none for these
    left, margin = rank.kv_cache_gib, 0.0
    if plan.options.kv_cache_bytes is None:
        left += rank.weights_gib - weights
        margin = max(min(rank.margin_gib, rank.memory_gib * _LOADED), weights * _LOADED)
    found = replace(rank, weights_gib=weights, kv_cache_gib=left, margin_gib=margin)
    return replace(found, blocks=_blocks(found, answer, 0.0))


def _blocks(rank: RankMemory, answer: EngineAnswer, more_gib: float) -> int:
    if not answer.block_bytes:
        return 0
    return max(0, int((rank.kv_cache_gib + more_gib) * GIB)) // answer.block_bytes[rank.stage]
