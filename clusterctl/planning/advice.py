"""The nearest settings that would fit, each as flags to add and what they achieve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import ClusterctlError
from clusterctl.models.shape import ModelShape
from clusterctl.planning.hardware import known_gpus
from clusterctl.planning.memory import FitPlan, best_split, plan_memory
from clusterctl.planning.options import ServeOptions
from clusterctl.planning.placement import Placement, Site, seat_ranks
from clusterctl.planning.problems import possible_tp
from clusterctl.planning.rules import Rules

_ROUND_TO = 1024
_SHORTEST = 512  # A context shorter than this is useless, and is not suggested

_HIGHEST_UTILIZATION = 0.95
_FEWER_REQUESTS = 64


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of flags that makes the plan fit."""

    flags: tuple[str, ...]
    text: str
    kv_cache_tokens: int
    max_concurrency: float

    def to_json(self) -> dict[str, Any]:
        return {
            "flags": list(self.flags),
            "text": self.text,
            "kv_cache_tokens": self.kv_cache_tokens,
            "max_concurrency": round(self.max_concurrency, 2),
        }


@dataclass(frozen=True, slots=True)
class _Try:
    flags: tuple[str, ...]
    text: str
    options: ServeOptions
    placement: Placement


def advise(
    shape: ModelShape, plan: FitPlan, sites: tuple[Site, ...], rules: Rules
) -> tuple[Advice, ...]:
    """Return single changes that would make this plan fit, nearest first."""
    if plan.verdict == "fits":
        return ()
    found = []
    for attempt in _attempts(shape, plan, sites):
        tried = best_split(shape, attempt.placement, attempt.options, rules)
        if tried.verdict == "fits":
            flags = attempt.flags
            if tried.placement.partition:
                layers = ",".join(map(str, tried.partition))
                flags = (*flags, f"VLLM_PP_LAYER_PARTITION={layers}")
            found.append(Advice(flags, attempt.text, tried.kv_cache_tokens, tried.max_concurrency))
    if not found:
        found.extend(_other_gpus(shape, plan, rules))
    return tuple(found)


def _attempts(shape: ModelShape, plan: FitPlan, sites: tuple[Site, ...]) -> Iterator[_Try]:
    options, placement = plan.options, plan.placement
    yield from _shorter(plan)
    flags: tuple[str, ...]
    if not options.kv_cache_dtype.startswith("fp8") and not placement.seats[0].gpu.is_cpu:
        smaller = replace(options, kv_cache_dtype="fp8")
        flags = ("--kv-cache-dtype", "fp8")
        yield _Try(flags, "a KV cache in fp8 holds twice the tokens", smaller, placement)
    if plan.settings.utilization < _HIGHEST_UTILIZATION and options.kv_cache_bytes is None:
        more = replace(options, utilization=_HIGHEST_UTILIZATION)
        flags = ("--gpu-memory-utilization", str(_HIGHEST_UTILIZATION))
        yield _Try(flags, "let vLLM use more of each GPU", more, placement)
    if plan.settings.batch.requests > _FEWER_REQUESTS:
        fewer = replace(options, max_num_seqs=_FEWER_REQUESTS, max_num_batched_tokens=2048)
        flags = ("--max-num-seqs", str(_FEWER_REQUESTS), "--max-num-batched-tokens", "2048")
        yield _Try(flags, "smaller batches need less memory for sampling", fewer, placement)
    yield from _other_cuts(shape, plan, sites)


def _shorter(plan: FitPlan) -> Iterator[_Try]:
    """Yield the longest context that still fits after deducting the margin of error."""
    worst = min(plan.ranks, key=lambda rank: rank.kv_cache_gib)
    if worst.kv_cache_gib <= worst.margin_gib:
        return
    share = 1 - worst.margin_gib / worst.kv_cache_gib
    length = int(plan.longest_context * share) // _ROUND_TO * _ROUND_TO
    if _SHORTEST <= length < plan.settings.max_model_len:
        options = replace(plan.options, max_model_len=length)
        flags = ("--max-model-len", str(length))
        yield _Try(flags, "a shorter context", options, plan.placement)


def _other_cuts(shape: ModelShape, plan: FitPlan, sites: tuple[Site, ...]) -> Iterator[_Try]:
    """Yield layouts of as many ranks or more, fewest first: TP inside hosts, then PP across."""
    most = sum(len(site.gpus) for site in sites)
    now = plan.placement.tp * plan.placement.pp
    cuts = [
        (tp, pp)
        for tp in possible_tp(shape, most)
        for pp in range(1, min(most // tp, len(shape.layers)) + 1)
        if (tp, pp) != (plan.placement.tp, plan.placement.pp) and tp * pp >= now
    ]
    for tp, pp in sorted(cuts, key=lambda cut: (cut[0] * cut[1], cut[1])):
        try:
            placement = seat_ranks(sites, tp, pp)
        except ClusterctlError:
            continue
        if not placement.groups_cross_hosts:
            flags = ("--tp", str(tp), "--pp", str(pp))
            options = replace(plan.options, partition=())
            yield _Try(flags, placement.reason, options, placement)


def _other_gpus(shape: ModelShape, plan: FitPlan, rules: Rules) -> Iterator[Advice]:
    """Yield the smallest GPU that would fit the model in the same layout."""
    if plan.placement.seats[0].gpu.is_cpu:
        return
    for gpu in sorted(known_gpus(), key=lambda gpu: gpu.memory_gib):
        seats = tuple(replace(seat, gpu=gpu) for seat in plan.placement.seats)
        tried = plan_memory(shape, replace(plan.placement, seats=seats), plan.options, rules)
        if tried.verdict == "fits":
            count = len(seats)
            text = f"{count} x {gpu.name} would hold it in the same layout"
            flags = ("--gpus", f"{count}x{gpu.name}")
            yield Advice(flags, text, tried.kv_cache_tokens, tried.max_concurrency)
            return
