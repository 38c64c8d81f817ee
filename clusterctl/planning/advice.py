"""The nearest settings that would fit, each as flags to add and what they achieve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clusterctl.errors import ClusterctlError
from clusterctl.planning.hardware import known_gpus
from clusterctl.planning.memory import FitPlan, best_split, plan_memory
from clusterctl.planning.options import ServeOptions
from clusterctl.planning.placement import PARTITION, Placement, seat_ranks
from clusterctl.planning.problems import possible_tp
from clusterctl.planning.report import Advice, PlanRequest

_ROUND_TO = 1024
_SHORTEST = 512  # A context shorter than this is useless, and is not suggested

_HIGHEST_UTILIZATION = 0.95
_FEWER_REQUESTS = 64

# Flags, what they achieve, and the plan's options and placement with them
_Try = tuple[tuple[str, ...], str, ServeOptions, Placement]


def advise(request: PlanRequest, plan: FitPlan) -> tuple[Advice, ...]:
    """Return single changes that would make this plan fit, nearest first; if there is none, the
    smallest GPU that would fit the model in the same layout."""
    if plan.verdict == "fits":
        return ()
    found = []
    for change, text, options, placement in _changes(request, plan):
        tried = best_split(request.shape, placement, options, request.rules)
        if tried.verdict == "fits":
            layers = ",".join(map(str, tried.placement.partition))
            flags = (*change, f"{PARTITION}={layers}") if layers else change
            found.append(Advice(flags, text, tried.kv_cache_tokens, tried.max_concurrency))
    if found or plan.placement.seats[0].gpu.is_cpu:
        return tuple(found)
    for gpu in sorted(known_gpus(), key=lambda gpu: gpu.memory_gib):
        seats = tuple(replace(seat, gpu=gpu) for seat in plan.placement.seats)
        other = replace(plan.placement, seats=seats)
        tried = plan_memory(request.shape, other, plan.options, request.rules)
        if tried.verdict == "fits":
            text = f"{len(seats)} x {gpu.name} would hold it in the same layout"
            flags = ("--gpus", f"{len(seats)}x{gpu.name}")
            return (Advice(flags, text, tried.kv_cache_tokens, tried.max_concurrency),)
    return ()


def _changes(request: PlanRequest, plan: FitPlan) -> Iterator[_Try]:
    """Yield a shorter context, other settings, then layouts of as many ranks or more, fewest first:
    TP inside hosts, then PP across."""
    options, placement = plan.options, plan.placement
    worst = min(plan.ranks, key=lambda rank: rank.kv_cache_gib)
    flags: tuple[str, ...]
    if worst.kv_cache_gib > worst.margin_gib:
        # the longest context that still fits after deducting the margin of error
        share = 1 - worst.margin_gib / worst.kv_cache_gib
        length = int(plan.longest_context * share) // _ROUND_TO * _ROUND_TO
        if _SHORTEST <= length < plan.settings.max_model_len:
            flags = ("--max-model-len", str(length))
            yield flags, "a shorter context", replace(options, max_model_len=length), placement
    if not options.kv_cache_dtype.startswith("fp8") and not placement.seats[0].gpu.is_cpu:
        smaller = replace(options, kv_cache_dtype="fp8")
        flags = ("--kv-cache-dtype", "fp8")
        yield flags, "a KV cache in fp8 holds twice the tokens", smaller, placement
    if plan.settings.utilization < _HIGHEST_UTILIZATION and options.kv_cache_bytes is None:
        more = replace(options, utilization=_HIGHEST_UTILIZATION)
        flags = ("--gpu-memory-utilization", str(_HIGHEST_UTILIZATION))
        yield flags, "let vLLM use more of each GPU", more, placement
    if plan.settings.batch.requests > _FEWER_REQUESTS:
        fewer = replace(options, max_num_seqs=_FEWER_REQUESTS, max_num_batched_tokens=2048)
        flags = ("--max-num-seqs", str(_FEWER_REQUESTS), "--max-num-batched-tokens", "2048")
        yield flags, "smaller batches need less memory for sampling", fewer, placement
    most = sum(len(site.gpus) for site in request.sites)
    cuts = [
        (tp, pp)
        for tp in possible_tp(request.shape, most)
        for pp in range(1, min(most // tp, len(request.shape.layers)) + 1)
        if (tp, pp) != (placement.tp, placement.pp) and tp * pp >= placement.tp * placement.pp
    ]
    for tp, pp in sorted(cuts, key=lambda cut: (cut[0] * cut[1], cut[1])):
        try:
            other = seat_ranks(request.sites, tp, pp)
        except ClusterctlError:
            continue
        if not other.groups_cross_hosts:
            flags = ("--tp", str(tp), "--pp", str(pp))
            yield flags, other.reason, replace(options, partition=()), other
