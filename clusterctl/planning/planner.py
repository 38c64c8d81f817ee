"""The planner: the layout of a model on given GPUs, its memory, and errors that vLLM would raise.

`fit` shows the report and `serve` starts its plan, so the two cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError, DoesNotFit, UsageError, raise_all
from clusterctl.models.shape import ModelShape
from clusterctl.planning.advice import advise
from clusterctl.planning.answers import as_stored, is_answered, stored_for
from clusterctl.planning.memory import OF_THE_MODEL, FitPlan, best_split
from clusterctl.planning.placement import (
    PARTITION,
    Placement,
    Site,
    room_for_copies,
    seat_ranks,
    sites_without,
)
from clusterctl.planning.problems import (
    OF_MEMORY,
    context_problem,
    heads_problem,
    possible_tp,
    predict_problems,
    requests_for,
    tp_problem,
)
from clusterctl.planning.proof import is_proven
from clusterctl.planning.report import FitReport, Hardware, PlanRequest, Proposal
from clusterctl.planning.speed import Speed, speed_of
from clusterctl.serving.arguments import Launch, engine_arguments
from clusterctl.serving.vllm_flags import CATALOGUE, DEFAULT, Argument, last_value, lay_over

if TYPE_CHECKING:
    from clusterctl.node.documents import ServiceDocument

# Bytes/s from which TP across hosts is proposed: RDMA of 200 Gbit/s and more. Over a 4 GB/s link TP
# 2 reached a seventh of one GPU's throughput.
FAST_NETWORK = 20e9

_MOST_STAGES = 16
_OFFERED_PER_TP = 2
_MUCH_FASTER = 1.5

_UNTYPED = (
    "config.json has no model_type, by which vLLM recognizes a model, and it will probably not "
    "start: copy the model's own config.json from the Hub next to its weights"
)
# A layout across hosts ranks before replicas inside hosts only if it is a third faster: it depends
# on the network, and the estimate is for 64 requests, which leaves many replicas idle.
_ACROSS_HOSTS = 0.75

# Compared with logs of starts, which have what the meta device has not: experts as they are laid
# out when they are loaded (docs/fit.md).
_STARTED = frozenset({"GptOssForCausalLM"})

# Methods of --speculative-config that guess from the text itself.
_WITHOUT_WEIGHTS = frozenset({"ngram", "ngram_gpu", "suffix"})

_STATES_SINCE = (0, 19, 0)

LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_CHANGES_THE_MODEL = ("hf-overrides", "hf-config-path", "config-format", "rope-scaling")


def request_for(
    launch: Launch, shape: ModelShape, hardware: Hardware, served: ServiceDocument | None = None
) -> PlanRequest:
    """Return a request to plan the service that this launch starts, with its flags for vLLM."""
    asked = launch.request
    if last_value(asked.given, "runner") == "pooling":
        counted = "a pooling model is planned as if it generated text"
        shape = replace(shape, assumptions=(*shape.assumptions, counted))
    sizes = (asked.tensor_parallel, asked.pipeline_parallel)
    count = 0 if asked.replicas == "max" else asked.replicas or 1
    return PlanRequest(shape, hardware, *sizes, planned_arguments(launch), served, count)


def planned_arguments(launch: Launch) -> tuple[Argument, ...]:
    """Return all flags that a plan depends on, except for TP and PP."""
    copies = launch.request.data_parallel
    more = (Argument("data-parallel-size", (str(copies),)),) if copies > 1 else ()
    return (*engine_arguments(launch), *more)


def plan(request: PlanRequest) -> FitReport:
    """Plan a request. Pure.

    Raises UsageError (or Problems) for an encoder, for values that vLLM would refuse, and for sizes
    that the model cannot be split into; DoesNotFit for more ranks than GPUs. A layout that does not
    fit in memory is not an error: see `FitReport.refused`.
    """
    report = _planned(request)
    fewer = _requests_that_start(request, report.plan)
    if fewer is None:
        return report

    flag = Argument("max-num-seqs", (str(fewer),))
    report = _planned(replace(request, arguments=lay_over(request.arguments, (flag,))))
    why = f"--max-num-seqs {fewer}: each request needs a block of the cache for its state"
    return replace(report, notes=(*report.notes, why))


def _requests_that_start(request: PlanRequest, found: FitPlan) -> int | None:
    """Return the most requests that a batch may have, if the default exceeds the blocks for states;
    None if it does not, or if the user has set it."""
    own = [argument for argument in request.arguments if argument.key == "max-num-seqs"]
    if found.state_blocks is None or any(argument.origin != DEFAULT for argument in own):
        return None
    fewest = found.state_blocks[0]
    return requests_for(fewest) if fewest < found.settings.batch.requests else None


def _planned(request: PlanRequest) -> FitReport:
    shape, hardware = request.shape, request.hardware
    if shape.unplanned:
        raise UsageError(
            f"{shape.architecture} is an encoder whose layers are not known here, so its memory is "
            "not planned",
            hint="clusterctl serve gives it one GPU, and vLLM says whether it fits",
        )
    options = request.options
    tp, pp = request.tp or options.tp, request.pp or options.pp
    by_number = options.expert_parallel
    size = tp if _tensor_sizes(request) else tp or 1
    require_possible(
        shape, hardware, size, pp, options.dp or 1, options.split_prefill, by_number=by_number
    )
    if problem := context_problem(shape, options, tp or 1):
        raise UsageError(problem, hint="leave it out, or give a size that vLLM takes")
    notes = [] if shape.typed else [_UNTYPED]
    if hardware.held and hardware.as_if_free:
        users = "; ".join(hardware.held)
        notes.append(f"no GPU is free, so this is planned as if all were: {users}")
    elif hardware.held:
        notes.append(f"planned for the free GPUs only: {'; '.join(hardware.held)}")
    proposals, kept = propose(request), _as_served(request)
    roomy = [each for each in proposals if each.plan.placement.replicas >= request.replicas]
    best = next(iter(roomy or proposals), None)
    if tp is not None or pp is not None:
        sizes = (tp or 1, pp or 1)
        same = kept is not None and (kept.placement.tp, kept.placement.pp) == sizes
        found = kept if kept and same else best_seated(request, *sizes, options.partition)
        found = replace(found, placement=replace(found.placement, replicas=options.dp or 1))
        report = _report(request, found, notes)
        known = report.speed.loaded
        slow = best and known and best.speed.loaded >= _MUCH_FASTER * known
        return replace(report, faster=best if slow else None)
    if kept and (kept.verdict == "fits" or not best or best.plan.verdict == "may not fit"):
        first, chosen = best.plan.placement if best else kept.placement, kept.placement
        if (first.tp, first.pp) != (chosen.tp, chosen.pp):
            notes.append(
                f"serve keeps the current layout, TP {chosen.tp}, PP {chosen.pp}; "
                f"the best that fits is --tp {first.tp} --pp {first.pp}"
            )
        report = replace(_report(request, kept, notes), reason="the current layout")
    else:
        found = best.plan if best else _closest(request)
        copies = found.placement.replicas
        if copies > 1 and not options.dp and request.replicas == 1:
            notes.append(
                f"serve starts one of the {copies} replicas; --replicas {copies} starts all of them"
            )
        report = _report(request, found, notes)
    return replace(report, proposals=proposals)


def require_possible(
    shape: ModelShape | None,
    hardware: Hardware,
    tp: int | None,
    pp: int | None,
    replicas: int = 1,
    prefill: int = 1,
    *,
    by_number: bool = False,
) -> None:
    """Raise UsageError for sizes that the model cannot be split into, and DoesNotFit for more ranks
    than GPUs, all at once. A `shape` of None skips the checks that depend on it. `prefill`: ranks
    that divide a prompt among them."""
    found: list[ClusterctlError] = []
    if shape and tp and (problem := _tp_problem(shape, tp, by_number)):
        found.append(problem)
    if shape and pp and pp > len(shape.layers):
        layers = len(shape.layers)
        found.append(UsageError(f"--pp {pp} is more than the model's {layers} layers",
                                hint=f"use --pp {layers} or less"))  # fmt: skip

    width, total = (tp or 1) * (pp or 1) * prefill, sum(host.free for host in hardware.free)
    room = room_for_copies(hardware.free, width)
    if room < replicas or width * replicas > total:
        sizes: Sequence[int] = range(1, total + 1)
        if shape:
            sizes = possible_tp(shape, total, by_number=by_number)
        given = (("tp", tp or 1), ("pp", pp or 1), ("dp", replicas),
                 ("prefill-context-parallel-size", prefill))  # fmt: skip
        asked = " ".join(f"--{name} {size}" for name, size in given if size > 1)
        found.append(_too_few_gpus(hardware, asked, width, replicas, room, max(sizes, default=0)))
    raise_all(found)


def _tp_problem(shape: ModelShape, tp: int, by_number: bool) -> UsageError | None:
    """Return the error for a TP that the model cannot be split into, with those it can."""
    # In an unknown architecture widths may have another meaning.
    if shape.assumptions:
        problem = heads_problem(shape, tp)
    else:
        problem = tp_problem(shape, tp, by_number=by_number)
    if not problem:
        return None
    sizes = ", ".join(map(str, possible_tp(shape, max(tp, 8), by_number=by_number)))
    if not sizes:
        return UsageError(f"--tp {tp} {problem}", hint="no size works: serve it in another format")
    whole = not by_number and tp_problem(shape, tp, by_number=True) is None
    other = f", or --ep with --tp {tp}, which keeps experts whole" if whole else ""
    return UsageError(f"--tp {tp} {problem}", hint=f"sizes that work: --tp {sizes}{other}")


def _too_few_gpus(
    hardware: Hardware, asked: str, width: int, replicas: int, room: int, largest: int
) -> DoesNotFit:
    """Return the error for more ranks than GPUs.

    asked    the sizes as flags; empty if all are 1
    width    GPUs of each of the `replicas`, of which there is room for `room`
    largest  the largest TP that works; 0 for none
    """
    ranks, total = width * replicas, sum(host.free for host in hardware.free)
    have = ", ".join(f"{host.host} {host.free}" for host in hardware.free) or "no host has any"
    fix = f"--tp {largest} works" if largest else "clusterctl status shows who uses the GPUs"
    if replicas > 1 and room:
        fix = f"--dp {room} works"
    elif replicas > 1 and largest:
        fix = f"--tp {largest} works, without --dp"
    on_one = f", {width} of one host for each copy," if ranks <= total else ""
    needs = f"{asked or 'a model'} needs {ranks} GPU{'s' * (ranks > 1)}{on_one}"
    return DoesNotFit(
        f"{needs} and there {'is' if total == 1 else 'are'} {total} free ({have})",
        hint=fix,
        detail="\n".join(hardware.held) or None,
    )


def propose(request: PlanRequest) -> tuple[Proposal, ...]:
    """Return the layouts that fit, best first: those that may not fit last, then by estimated
    tokens/s under load. Tensor parallel groups stay inside a host unless the network is fast. One
    stage more than needed is also offered, for its larger cache; more only add hops. Layouts on
    which vLLM cannot start are left out."""
    fitting: list[Proposal] = []
    for tp in _tensor_sizes(request):
        offered = 0
        for found in _stages(request, tp):
            if found.placement.groups_cross_hosts and request.network.bandwidth < FAST_NETWORK:
                continue
            if not _starts(request, found):
                continue
            if found.verdict != "does not fit":
                fitting.append(_proposal(request, found))
            offered += found.verdict == "fits"
            if offered == _OFFERED_PER_TP:
                break

    def rank(proposal: Proposal) -> tuple[bool, float, int]:
        placement, certain = proposal.plan.placement, proposal.plan.verdict == "fits"
        ranks = placement.tp * placement.pp
        if placement.seats[0].gpu.is_cpu:  # speed is modelled for GPUs only: smallest layout first
            return (not certain, 0.0, ranks)
        crosses = placement.groups_cross_hosts or placement.stages_cross_hosts
        speed = proposal.speed.loaded * (_ACROSS_HOSTS if crosses else 1.0)
        return (not certain, -round(speed, -1), ranks * placement.replicas)

    return tuple(sorted(fitting, key=rank))


def _tensor_sizes(request: PlanRequest) -> list[int]:
    """Return the powers of two that vLLM accepts. It accepts 3, 5, 6 and 7 too, which are
    untested."""
    if request.shape.on_one_gpu:
        return [1]
    total = sum(len(site.gpus) for site in request.sites)
    sizes = possible_tp(request.shape, total, by_number=request.options.expert_parallel)
    if not sizes and request.shape.assumptions:  # Widths may have another meaning
        return [1]
    return [tp for tp in sizes if tp & (tp - 1) == 0]


def _stages(request: PlanRequest, tp: int) -> Iterator[FitPlan]:
    """Yield the plans with that TP, from one pipeline stage up, whether or not they fit."""
    options = request.options
    copies, prefill = options.dp or 1, options.split_prefill
    total = sum(len(site.gpus) for site in request.sites) // (copies * prefill)
    for pp in range(1, min(total // tp, request.shape.most_stages, _MOST_STAGES) + 1):
        if room_for_copies(request.hardware.free, tp * pp * prefill) < copies:
            continue
        # A given partition applies to its own number of stages; others are offered without it.
        layers = options.partition if len(options.partition) == pp else ()
        yield best_seated(request, tp, pp, layers)


def _closest(request: PlanRequest) -> FitPlan:
    """Return the layout with the longest context, if none fits."""
    return max(
        (
            found
            for tp in _tensor_sizes(request)
            for found in _stages(request, tp)
            if not found.placement.groups_cross_hosts
        ),
        key=lambda plan: (plan.longest_context, min(rank.kv_cache_gib for rank in plan.ranks)),
    )


def best_seated(request: PlanRequest, tp: int, pp: int, partition: tuple[int, ...]) -> FitPlan:
    """Return the plan for TP x PP: inside the first host on which it fits and starts; else over the
    hosts in the given order if it does so there, else with the largest GPUs first; else the best of
    these. Raises DoesNotFit if there are too few GPUs."""
    options = replace(request.options, partition=partition)
    largest_first = sorted(request.sites, key=lambda site: -min(g.memory_gib for g in site.gpus))
    roomy = [site for site in request.sites if len(site.gpus) >= tp * pp]
    alike: dict[Site, Site] = {}  # The first of hosts that differ by name alone: one plan for all
    for site in roomy:
        alike.setdefault(replace(site, host=""), site)

    found: list[FitPlan] = []
    for order in (*([site] for site in alike.values()), request.sites, largest_first):
        others = [site for site in request.sites if site not in order]
        placement = _replicated(seat_ranks(order, tp, pp), [*order, *others], options.dp)
        candidate = best_split(request.shape, placement, options, request.rules)
        candidate = as_stored(candidate, request)
        if candidate.verdict == "fits" and _starts(request, candidate):
            return candidate
        found.append(candidate)
    verdicts = ("does not fit", "may not fit", "fits")
    return max(
        found,
        key=lambda plan: (
            _starts(request, plan),
            verdicts.index(plan.verdict),
            plan.kv_cache_tokens,
        ),
    )


def _starts(request: PlanRequest, plan: FitPlan) -> bool:
    """Return whether nothing but memory can keep vLLM from starting with that plan."""
    problems = predict_problems(request.shape, plan, request.rules, request.arguments)
    fatal = any(one.fatal and one.name not in OF_MEMORY for one in problems)
    return not fatal or bool(_doubts(request, plan))


def _replicated(placement: Placement, sites: Sequence[Site], asked: int | None) -> Placement:
    """Add the requested replicas, else as many as fit on the remaining GPUs of the same kinds."""
    if asked:
        return replace(placement, replicas=asked)
    kinds = [(seat.gpu, seat.place) for seat in placement.seats]
    left, other, copies = sites, placement, 0
    while [(seat.gpu, seat.place) for seat in other.seats] == kinds and (
        other.groups_cross_hosts == placement.groups_cross_hosts
    ):
        copies += 1
        left = sites_without(left, [seat.host for seat in other.seats])
        try:
            other = seat_ranks(left, placement.tp, placement.pp)
        except ClusterctlError:
            break
    return replace(placement, replicas=copies)


def fits_on(request: PlanRequest, placement: Placement) -> bool:
    """Return whether a replica may be started on these GPUs."""
    found = best_split(request.shape, placement, request.options, request.rules)
    found = as_stored(found, request)
    return found.verdict != "does not fit" or bool(_doubts(request, found))


def _as_served(request: PlanRequest) -> FitPlan | None:
    """Return the plan of the current layout, if it may still fit: measurements of an earlier start
    must neither move nor restart a service that is served again."""
    served, options = request.served, request.options
    by_number = options.expert_parallel
    if served is None or tp_problem(request.shape, served.tensor_parallel, by_number=by_number):
        return None
    counts = served.env.get(PARTITION, "").split(",")
    partition = tuple(int(count) for count in counts if count.isdecimal())
    for layers in dict.fromkeys((options.partition or partition, options.partition)):
        try:
            found = best_seated(request, served.tensor_parallel, served.pipeline_parallel, layers)
        except ClusterctlError:  # fewer GPUs than ranks, or a partition for another PP
            continue
        if found.verdict != "does not fit":
            return replace(found, placement=replace(found.placement, replicas=options.dp or 1))
    return None


def _unproven(request: PlanRequest, plan: FitPlan) -> tuple[str, ...]:
    """Return why the figures are not a verdict: what this model, release or flag needs was not
    compared with vLLM."""
    if stored_for(plan, request):
        return ()
    options, architecture = request.options, request.shape.architecture
    found = [*request.shape.assumptions]
    if not found and not is_proven(architecture) and architecture not in _STARTED:
        found.append(f"forecasts for {architecture} were not compared with vLLM")
    found += [
        f"{argument.flag} overrides config.json"
        for argument in request.arguments
        if argument.key in _CHANGES_THE_MODEL and argument.origin != CATALOGUE
    ]
    if not options.cache_is_known:
        found.append(
            f"the size of a KV cache in {options.kv_cache_dtype} was not compared with vLLM's"
        )
    weighs = options.drafter and options.drafter not in _WITHOUT_WEIGHTS
    own = options.drafter in OF_THE_MODEL and is_proven(architecture, drafted=True)
    if weighs and not own:
        found.append(f"the weights and the cache of the drafter ({options.drafter}) are estimated")
    if options.split_prefill > 1:
        ranks = options.split_prefill
        found.append(
            f"--prefill-context-parallel-size {ranks} takes {ranks} times as many GPUs, each with "
            "the same weights and the whole cache; what their steps take was not compared"
        )
    if len(request.shape.states) and request.rules.version < _STATES_SINCE:
        found.append("models that keep states were compared with vLLM 0.19 and newer")
    if request.rules.notes and request.hardware.vllm:
        found += request.rules.notes  # a release that is not known
    return tuple(found)


def _doubts(request: PlanRequest, plan: FitPlan) -> tuple[str, ...]:
    """Return why the forecast is too uncertain to refuse a start; empty if it is reliable."""
    doubts = [*_unproven(request, plan)]
    if request.hardware.env.get(LONGER, "0") not in ("0", ""):
        doubts.append(f"{LONGER} allows a longer context than the model's own")
    quantized = bool(request.shape.quantization or request.options.quantization)
    compared = request.options.expert_parallel and not quantized
    divided = any(layer.experts for layer in request.shape.layers)
    if (request.options.dp or 1) > 1 and divided and not compared:
        doubts.append(
            "replicas share the experts: their buffers were compared for bf16 with "
            "--enable-expert-parallel alone"
        )
    on_cpus = any(gpu.is_cpu for site in request.sites for gpu in site.gpus)
    if on_cpus and request.options.kv_cache_bytes is None:
        # On CPUs the size of vLLM's cache is a setting, which the image may contain.
        doubts.append("the size of the KV cache on CPUs is not set")
    return tuple(doubts)


def _report(request: PlanRequest, found: FitPlan, notes: Sequence[str]) -> FitReport:
    used = {seat.gpu.name for seat in found.placement.seats}
    gpus = Counter((gpu.name, site.host) for site in request.sites for gpu in site.gpus)
    idle = [
        f"{count} x {name} on {host}" for (name, host), count in gpus.items() if name not in used
    ]
    if idle:
        shown = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
        notes = (*notes, f"this layout leaves other GPUs idle: {shown}")
    if not any(seat.gpu.is_cpu for seat in found.placement.seats):
        notes = (*notes, *_network_notes(request, found.placement))
    return FitReport(
        **vars(_proposal(request, found)),
        problems=predict_problems(request.shape, found, request.rules, request.arguments),
        advice=advise(request, found),
        doubts=_doubts(request, found),
        notes=tuple(notes),
    )


def _network_notes(request: PlanRequest, placement: Placement) -> Iterator[str]:
    """Yield the source of the speed of a network that tensors cross, and what it leaves out."""
    if _exchanges_over_network(request, placement):
        yield (
            "speed: not estimated, as experts on different hosts exchange tokens in each layer; "
            "over 2 to 3 GB/s that made two and four H200 2.4 to 4.0 times slower than one host"
        )
    crosses = placement.groups_cross_hosts or placement.stages_cross_hosts
    if request.hardware.measured and crosses:
        yield (
            f"speed: {request.network.bandwidth / 1e9:.2g} GB/s between hosts, measured at "
            f"{request.hardware.measured}; clusterctl check --fabric measures again"
        )


def _exchanges_over_network(request: PlanRequest, placement: Placement) -> bool:
    """Whether replicas on different hosts divide the experts among them."""
    copies = request.options.dp or 1
    divided = copies > 1 and any(layer.experts for layer in request.shape.layers)
    return divided and copies * placement.tp * placement.pp > placement.room


def _proposal(request: PlanRequest, plan: FitPlan) -> Proposal:
    placement, limit = plan.placement, plan.limited_by
    parts = [placement.reason]
    if placement.replicas > 1:
        parts.append(f"{placement.replicas} independent replicas")
    if placement.partition:
        layers = ",".join(map(str, plan.partition))
        parts.append(f"layers split {layers} because the GPUs differ")
    if limit.unused_gib > 1 and len(plan.ranks) > 1:
        parts.append(f"limited by {limit.gpu} on {limit.host}, {limit.unused_gib:.0f} GiB unused")
    if plan.verdict == "may not fit":
        parts.append("within the margin of error")
    quantization = plan.settings.quantization
    batched = plan.settings.batch.tokens
    speed = speed_of(request.shape, placement, quantization, request.network, plan.options, batched)
    # The model of the speed is of answers that are generated from a text.
    if _exchanges_over_network(request, placement) or request.shape.on_one_gpu:
        speed = Speed(())
    unproven = _unproven(request, plan)
    if unproven and is_answered(plan.model):  # Others of the list may be proven
        parts.append("unproven")
    return Proposal(plan, speed, "; ".join(parts), unproven)


def one_service(report: FitReport, request: PlanRequest) -> FitReport:
    """Reduce a report of several replicas to the one that `serve` starts."""
    copies = request.options.dp or 1
    if report.plan.placement.replicas == copies:
        return report
    plan = replace(report.plan, placement=replace(report.plan.placement, replicas=copies))
    return replace(report, plan=plan, speed=_proposal(request, plan).speed)
