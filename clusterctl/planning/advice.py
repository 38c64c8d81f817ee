"""The nearest settings that would fit, each as flags to add and their effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterctl.errors import ClusterctlError
from clusterctl.models.quantized import NEEDS_CAPABILITY
from clusterctl.planning.hardware import known_gpus
from clusterctl.planning.memory import FitPlan, best_split, plan_memory
from clusterctl.planning.options import ServeOptions
from clusterctl.planning.placement import PARTITION, Placement, room_for_copies, seat_ranks
from clusterctl.planning.problems import possible_tp, shorter_context
from clusterctl.planning.report import Advice, PlanRequest
from clusterctl.serving.arguments import least_step

_UTILIZATIONS = (0.95, 0.9)  # The second one leaves room for CUDA graphs in older releases
_SMALL_STEP = 2048
_FEWER_REQUESTS = 64

# Flags and what they achieve, with the plan's options
_Change = tuple[tuple[str, ...], str, ServeOptions]
_Layout = tuple[tuple[str, ...], Placement]  # Flags and what they seat


def advise(request: PlanRequest, plan: FitPlan) -> tuple[Advice, ...]:
    """Return changes that would make this plan fit. Free changes come first: single flags, and if
    none suffices all of them; then layouts; then weights of fewer bits; only then the smallest GPU
    that would do."""
    if plan.verdict == "fits":
        return ()
    found: dict[str, Advice] = {}  # by the first flag: of two values the first one that fits

    def attempt(change: _Change, placement: Placement, *, shorten: bool = False) -> None:
        flags, text, options = change
        tried = best_split(request.shape, placement, options, request.rules)
        shorten = shorten and tried.verdict != "fits"
        length = shorter_context(tried, request.shape.context) if shorten else None
        if length:
            flags, text = (*flags, "--max-model-len", str(length)), f"{text}, a shorter context"
            options = replace(options, max_model_len=length)
            tried = best_split(request.shape, placement, options, request.rules)
        key = " ".join(flags) if "--tp" in flags else flags[0]
        if tried.verdict == "fits" and key not in found:
            layers = ",".join(map(str, tried.placement.partition))
            flags = (*flags, f"{PARTITION}={layers}") if layers else flags
            found[key] = Advice(flags, text, tried.kv_cache_tokens, round(tried.max_concurrency, 2))

    for change in _settings(request, plan):
        attempt(change, plan.placement)
    combined = [] if found else _combined(request, plan)
    for change in combined:
        if not found:
            attempt(change, plan.placement, shorten=True)
    layouts = list(_layouts(request, plan))
    for sizes, placement in layouts:
        attempt((sizes, placement.reason, replace(plan.options, partition=())), placement)
    for change, placement in _last_settings(request, plan, combined, layouts):
        if not found:
            attempt(change, placement, shorten=True)
    if found or plan.placement.seats[0].gpu.is_cpu:
        return tuple(found.values())
    for gpu in sorted(known_gpus(), key=lambda gpu: gpu.memory_gib):
        seats = tuple(replace(seat, gpu=gpu) for seat in plan.placement.seats)
        other = replace(plan.placement, seats=seats)
        tried = plan_memory(request.shape, other, plan.options, request.rules)
        if tried.verdict == "fits":
            count = len(seats) * (request.options.dp or 1)
            text = f"{count} x {gpu.name} would hold it in the same layout"
            flags = ("--gpus", f"{count}x{gpu.name}")
            return (Advice(flags, text, tried.kv_cache_tokens, round(tried.max_concurrency, 2)),)
    return ()


def _settings(request: PlanRequest, plan: FitPlan) -> Iterator[_Change]:
    """Yield single changes of vLLM's settings, those without a drawback first."""
    options, settings, on_cpu = plan.options, plan.settings, plan.placement.seats[0].gpu.is_cpu
    step = max(_SMALL_STEP, least_step(request.shape, request.rules.version))
    if step < settings.batch.tokens:
        smaller = replace(options, max_num_batched_tokens=step)
        flags = ("--max-num-batched-tokens", str(step))
        yield flags, "smaller steps need less memory for activations", smaller
    for share in _UTILIZATIONS:
        if settings.utilization < share and options.kv_cache_bytes is None:
            flags = ("--gpu-memory-utilization", str(share))
            yield flags, "let vLLM use more of each GPU", replace(options, utilization=share)
    if settings.batch.requests > _FEWER_REQUESTS:
        fewer = replace(options, max_num_seqs=_FEWER_REQUESTS, max_num_batched_tokens=step)
        both = ("--max-num-seqs", str(_FEWER_REQUESTS), "--max-num-batched-tokens", str(step))
        yield both, "smaller batches need less memory for sampling", fewer
    length = shorter_context(plan, request.shape.context)
    if length:
        flags = ("--max-model-len", str(length))
        yield flags, "a shorter context", replace(options, max_model_len=length)
    if not options.enforce_eager and not on_cpu:
        eager = replace(options, enforce_eager=True)
        yield ("--enforce-eager",), "without CUDA graphs, which makes decoding slower", eager
    if not options.kv_cache_dtype.startswith("fp8") and not on_cpu:
        half = replace(options, kv_cache_dtype="fp8")
        yield ("--kv-cache-dtype", "fp8"), "a KV cache in fp8 holds twice the tokens", half


def _combined(request: PlanRequest, plan: FitPlan) -> list[_Change]:
    """Return the change to use more of each GPU, and that change combined with smaller batches;
    leaves out what the plan already has."""
    options, flags = plan.options, list[str]()
    found: list[_Change] = []
    share = _UTILIZATIONS[-1]
    if plan.settings.utilization < share and options.kv_cache_bytes is None:
        options = replace(options, utilization=share)
        flags += ["--gpu-memory-utilization", str(share)]
        found.append((tuple(flags), "let vLLM use more of each GPU", options))
    if plan.settings.batch.requests > _FEWER_REQUESTS:
        step = max(_SMALL_STEP, least_step(request.shape, request.rules.version))
        options = replace(options, max_num_seqs=_FEWER_REQUESTS, max_num_batched_tokens=step)
        flags += ["--max-num-seqs", str(_FEWER_REQUESTS), "--max-num-batched-tokens", str(step)]
        found.append((tuple(flags), "smaller batches, and all that vLLM may use", options))
    return found


def _last_settings(
    request: PlanRequest, plan: FitPlan, combined: Sequence[_Change], layouts: Sequence[_Layout]
) -> Iterator[tuple[_Change, Placement]]:
    """Yield all settings with each layout, then weights of fewer bits in this and each layout."""
    changes = [(change, layouts) for change in combined]
    here: _Layout = ((), plan.placement)
    changes += [(change, [here, *layouts]) for change in _quantized(request, plan)]
    for (flags, text, options), among in changes:
        for sizes, placement in among:
            why = f"{placement.reason}; {text}" if sizes else text
            yield ((*sizes, *flags), why, replace(options, partition=())), placement


def _quantized(request: PlanRequest, plan: FitPlan) -> Iterator[_Change]:
    """Yield ways to quantize weights while loading, for a model that has no quantization."""
    options, shape = plan.options, request.shape
    if plan.settings.quantization or plan.placement.seats[0].gpu.is_cpu:
        return
    if all(seat.gpu.capability >= NEEDS_CAPABILITY["fp8"] for seat in plan.placement.seats):
        eight = replace(options, quantization="fp8")
        yield ("--quantization", "fp8"), "weights in 8 bits, made while loading", eight
    # Releases with bitsandbytes have it for experts of few models only
    if request.rules.has_bitsandbytes and not any(layer.experts for layer in shape.layers):
        four = replace(options, quantization="bitsandbytes")
        yield ("--quantization", "bitsandbytes"), "weights in 4 bits, made while loading", four


def _layouts(request: PlanRequest, plan: FitPlan) -> Iterator[_Layout]:
    """Yield layouts of as many ranks or more, fewest first: TP inside hosts, then PP across."""
    now, copies = plan.placement, request.options.dp or 1
    most = sum(len(site.gpus) for site in request.sites) // copies
    cuts = [
        (tp, pp)
        for tp in possible_tp(request.shape, most)
        for pp in range(1, min(most // tp, request.shape.most_stages) + 1)
        if (tp, pp) != (now.tp, now.pp) and tp * pp >= now.tp * now.pp
    ]
    for tp, pp in sorted(cuts, key=lambda cut: (cut[0] * cut[1], cut[1])):
        try:
            other = seat_ranks(request.sites, tp, pp)
        except ClusterctlError:
            continue
        seated = room_for_copies(request.hardware.free, tp * pp) >= copies
        if seated and not other.groups_cross_hosts:
            yield ("--tp", str(tp), "--pp", str(pp)), other
