"""The planner: the layout of a model on given GPUs, its memory, and errors that vLLM would raise.
`fit` shows the report and `serve` starts its plan, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.accelerators.engine_defaults import ON_GPUS, EngineDefaults
from clusterctl.errors import ClusterctlError, DoesNotFit, UsageError, raise_all
from clusterctl.models.shape import ModelShape
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.advice import Advice, advise
from clusterctl.planning.hardware import GpuModel, parse_gpus
from clusterctl.planning.memory import FitPlan, best_split
from clusterctl.planning.options import ServeOptions, parse_options
from clusterctl.planning.overheads import Fabric
from clusterctl.planning.placement import HostGpus, Placement, Site, seat_ranks
from clusterctl.planning.problems import (
    PredictedProblem,
    heads_problem,
    possible_tp,
    predict_problems,
    tp_problem,
)
from clusterctl.planning.rules import Rules, rules_for
from clusterctl.planning.speed import NETWORK, LinkSpeed, Speed, speed_of
from clusterctl.serving.arguments import Launch, engine_arguments
from clusterctl.serving.vllm_flags import Argument, last_value
from clusterctl.units import GIB

# Bytes/s from which TP across hosts is proposed: RDMA of 200 Gbit/s and more. Over a 4 GB/s link TP
# 2 reached a seventh of one GPU's throughput.
FAST_NETWORK = 20e9

_MOST_STAGES = 16
_OFFERED_PER_TP = 2
_MUCH_FASTER = 1.5

PARTITION = "VLLM_PP_LAYER_PARTITION"
LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_CHANGES_THE_MODEL = ("hf-overrides", "hf-config-path", "config-format", "rope-scaling")


@dataclass(frozen=True)
class Hardware:
    """The hosts, link and environment to plan for."""

    sites: tuple[Site, ...]
    network: LinkSpeed | None = None  # None if unknown: an ordinary one is assumed
    defaults: EngineDefaults = ON_GPUS
    env: Mapping[str, str] = field(default_factory=dict)
    vllm: str | None = None
    # Number of free GPUs by host, even if nothing else is known about them; empty: those of
    # `sites`.
    gpus: tuple[HostGpus, ...] = ()
    held: tuple[str, ...] = ()  # Users of the GPUs that are not free, a line each
    as_if_free: bool = False  # GPUs in use are planned for too, since none is free

    @property
    def free(self) -> tuple[HostGpus, ...]:
        return self.gpus or tuple(HostGpus(site.host, len(site.gpus)) for site in self.sites)

    @property
    def smallest_gpu(self) -> int | None:
        """The bytes of the smallest GPU; None on CPUs."""
        memories = [gpu.memory_gib for site in self.sites for gpu in site.gpus]
        return int(min(memories) * GIB) or None if memories else None


@dataclass(frozen=True, slots=True)
class ServedLayout:
    """The current layout of a service that is served again. `partition`: its layers per stage."""

    tp: int
    pp: int
    partition: tuple[int, ...] = ()


def served_layout(document: ServiceDocument | None) -> ServedLayout | None:
    """Return the layout in a service's document; None without a document."""
    if document is None:
        return None
    split = document.env.get(PARTITION, "")
    partition = tuple(int(count) for count in split.split(",") if count.isdecimal())
    return ServedLayout(document.tensor_parallel, document.pipeline_parallel, partition)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A model to plan on hosts, with its options, for a vLLM version."""

    shape: ModelShape
    hardware: Hardware
    tp: int | None = None  # None: the planner chooses, as for `pp`
    pp: int | None = None
    arguments: tuple[Argument, ...] = ()  # All flags that are passed to vLLM
    served: ServedLayout | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.hardware.sites

    @property
    def network(self) -> LinkSpeed:
        return self.hardware.network or NETWORK

    @property
    def options(self) -> ServeOptions:
        """The parsed options. Raises UsageError, or Problems, for values that vLLM refuses."""
        return parse_options(self.arguments, self.hardware.env)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A layout with its plan (of one replica) and its estimated speed (of all)."""

    plan: FitPlan
    speed: Speed
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {**self.plan.to_json(), "speed": self.speed.to_json(), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class FitReport:
    """The result of planning."""

    plan: FitPlan  # The sizes asked for, else the current layout, else the best proposal
    speed: Speed
    reason: str
    problems: tuple[PredictedProblem, ...]
    advice: tuple[Advice, ...]
    proposals: tuple[Proposal, ...] = ()  # All that fit, best first; empty if TP or PP was given
    faster: Proposal | None = None  # A proposal estimated to be at least 1.5 times as fast
    doubts: tuple[str, ...] = ()  # Why nothing is refused; empty if the plan is reliable
    notes: tuple[str, ...] = ()  # How `serve` deviates from the plan

    @property
    def refused(self) -> bool:
        """Whether vLLM certainly cannot start like this."""
        return not self.doubts and any(problem.fatal for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return the stable form of `fit --json`."""
        plan = self.plan.to_json()
        return {
            **plan,
            "reason": self.reason,
            "notes": [*plan["notes"], *self.notes],
            "speed": self.speed.to_json(),
            "foreseen": [problem.to_json() for problem in self.problems],
            "doubts": list(self.doubts),
            "advice": [item.to_json() for item in self.advice],
            "proposals": [item.to_json() for item in self.proposals],
            "faster": self.faster.to_json() if self.faster else None,
        }


def request_for(
    launch: Launch, shape: ModelShape, hardware: Hardware, served: ServedLayout | None = None
) -> PlanRequest:
    """Return a request to plan the service that this launch starts, with its flags for vLLM."""
    asked = launch.request
    if last_value(asked.given, "runner") == "pooling":
        counted = "a pooling model is planned as if it generated text"
        shape = replace(shape, assumptions=(*shape.assumptions, counted))
    return PlanRequest(
        shape=shape,
        hardware=hardware,
        tp=asked.tensor_parallel,
        pp=asked.pipeline_parallel,
        arguments=planned_arguments(launch),
        served=served,
    )


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
    shape, sites = request.shape, request.sites
    if shape.encoder:
        raise UsageError(
            f"{shape.architecture} is an encoder, which has no KV cache and generates nothing: its "
            "memory besides the weights is unknown here",
            hint="clusterctl serve gives it one GPU, and vLLM says whether it fits",
        )
    rules, options = rules_for(request.hardware.vllm), request.options
    tp, pp = request.tp or options.tp, request.pp or options.pp
    require_possible(shape, request.hardware, tp, pp, options.dp or 1)
    proposals = propose(shape, sites, options, rules, request.network)
    kept = _as_served(request, options, rules)
    if tp is not None or pp is not None:
        sizes = (tp or 1, pp or 1)
        same = kept is not None and (kept.placement.tp, kept.placement.pp) == sizes
        found = kept if kept and same else best_seated(shape, *sizes, sites, options, rules)
        found = replace(found, placement=replace(found.placement, replicas=options.dp or 1))
        report = _report(request, found, options, rules)
        notes = _held_notes(request.hardware)
        first = proposals[0] if proposals else None
        faster = (
            first if first and first.speed.loaded >= _MUCH_FASTER * report.speed.loaded else None
        )
        return replace(report, faster=faster, notes=notes)
    best = proposals[0].plan if proposals else None
    if kept and (kept.verdict == "fits" or not best or best.verdict == "tight"):
        report = _report(request, kept, options, rules)
        report = replace(report, reason="the current layout")
    else:
        report = _report(request, best or _closest(request, options, rules), options, rules)
    notes = (*_held_notes(request.hardware), *_notes(report, options, best))
    return replace(report, proposals=proposals, notes=notes)


def require_possible(
    shape: ModelShape | None,
    hardware: Hardware,
    tp: int | None,
    pp: int | None,
    replicas: int = 1,
) -> None:
    """Raise UsageError for sizes that the model cannot be split into, and DoesNotFit for more ranks
    than GPUs, all at once. A `shape` of None skips the checks that depend on it."""
    found: list[ClusterctlError] = []
    free = hardware.free
    # In an unknown architecture widths may have another meaning.
    judge = heads_problem if shape and shape.assumptions else tp_problem
    problem = judge(shape, tp) if shape and tp else None
    if shape and problem:
        sizes = ", ".join(map(str, possible_tp(shape, max(tp or 1, 8))))
        found.append(UsageError(f"--tp {tp} {problem}", hint=f"sizes that work: --tp {sizes}"))
    if shape and pp and pp > len(shape.layers):
        layers = len(shape.layers)
        found.append(UsageError(f"--pp {pp} is more than the model's {layers} layers",
                                hint=f"use --pp {layers} or less"))  # fmt: skip
    ranks, total = (tp or 1) * (pp or 1) * replicas, sum(host.free for host in free)
    if ranks > total:
        given = (("tp", tp or 1), ("pp", pp or 1), ("dp", replicas))
        asked = " ".join(f"--{name} {size}" for name, size in given if size > 1) or "a model"
        have = ", ".join(f"{host.host} {host.free}" for host in free) or "no host has any"
        possible = possible_tp(shape, total) if shape else range(1, total + 1)
        nearest = max(possible, default=0)
        fix = f"--tp {nearest} works" if nearest else "clusterctl status shows who uses the GPUs"
        found.append(
            DoesNotFit(
                f"{asked} needs {ranks} GPU{'s' * (ranks > 1)} and there "
                f"{'is' if total == 1 else 'are'} {total} free ({have})",
                hint=fix,
                detail="\n".join(hardware.held) or None,
            )
        )
    raise_all(found)


def propose(
    shape: ModelShape,
    sites: Sequence[Site],
    options: ServeOptions,
    rules: Rules,
    network: LinkSpeed = NETWORK,
) -> tuple[Proposal, ...]:
    """Return the layouts that fit, best first: certain ones before tight ones, then by estimated
    tokens/s under load. Tensor parallel groups stay inside a host unless the network is fast."""
    fitting: list[Proposal] = []
    for tp in _tensor_sizes(shape, sites):
        for found in _plans(shape, tp, sites, options, rules, network):
            speed = speed_of(shape, found.placement, found.settings.quantization, network)
            fitting.append(Proposal(found, speed, _reason(found)))
    return tuple(sorted(fitting, key=_rank))


def _tensor_sizes(shape: ModelShape, sites: Sequence[Site]) -> list[int]:
    """Return the powers of two that vLLM accepts. It accepts 3, 5, 6 and 7 too, which are
    untested."""
    total = sum(len(site.gpus) for site in sites)
    return [tp for tp in possible_tp(shape, total) if tp & (tp - 1) == 0]


def _plans(
    shape: ModelShape,
    tp: int,
    sites: Sequence[Site],
    options: ServeOptions,
    rules: Rules,
    network: LinkSpeed,
) -> Iterator[FitPlan]:
    """Yield plans with that TP, from one stage up. One stage more than needed is offered too, for
    its larger cache; further stages only add hops."""
    total = sum(len(site.gpus) for site in sites) // (options.dp or 1)
    found = 0
    for pp in range(1, min(total // tp, len(shape.layers), _MOST_STAGES) + 1):
        # A given partition applies only to its own number of stages; other numbers are offered too.
        given = options if len(options.partition) == pp else replace(options, partition=())
        candidate = best_seated(shape, tp, pp, sites, given, rules)
        if candidate.placement.groups_cross_hosts and network.bandwidth < FAST_NETWORK:
            continue
        if candidate.verdict != "does not fit":
            yield candidate
        found += candidate.verdict == "fits"
        if found == _OFFERED_PER_TP:
            return


def _rank(proposal: Proposal) -> tuple[bool, float, int]:
    placement = proposal.plan.placement
    used = placement.tp * placement.pp * placement.replicas
    if placement.seats[0].gpu.is_cpu:  # speed is modelled for GPUs only: smallest layout first
        return (proposal.plan.verdict != "fits", 0.0, placement.tp * placement.pp)
    return (proposal.plan.verdict != "fits", -round(proposal.speed.loaded, -1), used)


def best_seated(
    shape: ModelShape,
    tp: int,
    pp: int,
    sites: Sequence[Site],
    options: ServeOptions,
    rules: Rules,
) -> FitPlan:
    """Return the plan for TP x PP on the hosts in the order given, or with the largest GPUs first
    if only that fits; a head stays first. Raises DoesNotFit if there are too few GPUs."""
    ordered = sorted(
        sites, key=lambda site: (not site.head, -min(gpu.memory_gib for gpu in site.gpus))
    )
    found: list[FitPlan] = []
    for order in (sites, ordered):
        placement = _replicated(seat_ranks(order, tp, pp), order, options.dp)
        candidate = best_split(shape, placement, options, rules)
        if candidate.verdict == "fits":
            return candidate
        found.append(candidate)
    return max(found, key=lambda plan: (plan.verdict == "tight", plan.kv_cache_tokens))


def _replicated(placement: Placement, sites: Sequence[Site], asked: int | None) -> Placement:
    """Add the replicas asked for, else as many as fit on the remaining GPUs of the same kinds."""
    if asked:
        return replace(placement, replicas=asked)
    kinds = [(seat.gpu, seat.place) for seat in placement.seats]
    left, copies = _without(sites, placement), 1
    while True:
        try:
            other = seat_ranks(left, placement.tp, placement.pp)
        except ClusterctlError:
            break
        if [(seat.gpu, seat.place) for seat in other.seats] != kinds or (
            other.groups_cross_hosts != placement.groups_cross_hosts
        ):
            break
        copies += 1
        left = _without(left, other)
    return replace(placement, replicas=copies)


def _without(sites: Sequence[Site], placement: Placement) -> tuple[Site, ...]:
    """Return the sites without the GPUs that a placement uses, which are the first ones of each."""
    used = [seat.host for seat in placement.seats]
    return tuple(
        replace(site, gpus=site.gpus[used.count(site.host) :])
        for site in sites
        if len(site.gpus) > used.count(site.host)
    )


def _as_served(request: PlanRequest, options: ServeOptions, rules: Rules) -> FitPlan | None:
    """Return the plan of the current layout, if it may still fit: measurements of an earlier start
    must neither move nor restart a service that is served again."""
    served = request.served
    if served is None or tp_problem(request.shape, served.tp):
        return None
    for partition in dict.fromkeys((options.partition or served.partition, options.partition)):
        try:
            given = replace(options, partition=partition)
            found = best_seated(request.shape, served.tp, served.pp, request.sites, given, rules)
        except ClusterctlError:  # fewer GPUs than ranks, or a partition for another PP
            continue
        if found.verdict != "does not fit":
            return replace(found, placement=replace(found.placement, replicas=options.dp or 1))
    return None


def _closest(request: PlanRequest, options: ServeOptions, rules: Rules) -> FitPlan:
    """Return the layout with the longest context, if none fits."""
    shape, sites = request.shape, request.sites
    total = sum(len(site.gpus) for site in sites) // (options.dp or 1)
    plans = []
    for tp in _tensor_sizes(shape, sites):
        for pp in range(1, min(total // tp, len(shape.layers), _MOST_STAGES) + 1):
            given = options if len(options.partition) == pp else replace(options, partition=())
            candidate = best_seated(shape, tp, pp, sites, given, rules)
            if not candidate.placement.groups_cross_hosts:
                plans.append(candidate)
    return max(
        plans,
        key=lambda plan: (plan.longest_context, min(rank.kv_cache_gib for rank in plan.ranks)),
    )


def _report(request: PlanRequest, found: FitPlan, options: ServeOptions, rules: Rules) -> FitReport:
    shape = request.shape
    return FitReport(
        plan=found,
        speed=speed_of(shape, found.placement, found.settings.quantization, request.network),
        reason=_reason(found),
        problems=predict_problems(shape, found, rules, request.arguments),
        advice=advise(shape, found, request.sites, rules),
        doubts=_doubts(request, options),
    )


def one_service(report: FitReport, request: PlanRequest) -> FitReport:
    """Reduce a report of several replicas to the one that `serve` starts."""
    copies = request.options.dp or 1
    if report.plan.placement.replicas == copies:
        return report
    placement = replace(report.plan.placement, replicas=copies)
    storage = report.plan.settings.quantization
    speed = speed_of(request.shape, placement, storage, request.network)
    return replace(report, plan=replace(report.plan, placement=placement), speed=speed)


def _doubts(request: PlanRequest, options: ServeOptions) -> tuple[str, ...]:
    """Return the reasons for refusing nothing; empty if the plan is reliable."""
    changed = [
        argument.flag for argument in request.arguments if argument.key in _CHANGES_THE_MODEL
    ]
    found = [*request.shape.assumptions]
    found += [f"{flag} overrides config.json" for flag in changed]
    if request.hardware.env.get(LONGER, "0") not in ("0", ""):
        found.append(f"{LONGER} allows a longer context than the model's own")
    if options.kv_cache_bytes is None and any(
        gpu.is_cpu for site in request.sites for gpu in site.gpus
    ):
        # On CPUs the size of vLLM's cache is a setting, which the image may contain.
        found.append("the size of the KV cache on CPUs is not set")
    return tuple(found)


def _held_notes(hardware: Hardware) -> tuple[str, ...]:
    """Return a note about services that hold GPUs."""
    if not hardware.held:
        return ()
    who = "; ".join(hardware.held)
    if hardware.as_if_free:
        return (f"no GPU is free, so this is planned as if all were: {who}",)
    return (f"planned for the free GPUs only: {who}",)


def _notes(report: FitReport, options: ServeOptions, best: FitPlan | None) -> tuple[str, ...]:
    """Return a note if `serve` does not start the first layout as it is."""
    placement, notes = report.plan.placement, []
    if best and (best.placement.tp, best.placement.pp) != (placement.tp, placement.pp):
        notes.append(
            f"serve keeps the current layout, TP {placement.tp}, PP {placement.pp}; "
            f"the best that fits is --tp {best.placement.tp} --pp {best.placement.pp}"
        )
    elif placement.replicas > 1 and not options.dp:
        copies = placement.replicas
        notes.append(
            f"serve starts one of the {copies} replicas; "
            f"-- --data-parallel-size {copies} starts all of them"
        )
    return tuple(notes)


def _reason(plan: FitPlan) -> str:
    placement = plan.placement
    parts = [placement.reason]
    if placement.replicas > 1:
        parts.append(f"{placement.replicas} independent replicas")
    if placement.partition:
        layers = ",".join(map(str, plan.partition))
        parts.append(f"layers split {layers} because the GPUs differ")
    if plan.limited_by.unused_gib > 1 and len(plan.ranks) > 1:
        limit = plan.limited_by
        parts.append(f"limited by {limit.gpu} on {limit.host}, {limit.unused_gib:.0f} GiB unused")
    if plan.verdict == "tight":
        parts.append("within the margin of error")
    return "; ".join(parts)


def sites_of(gpus: str, hosts: int = 1) -> tuple[Site, ...]:
    """Return `hosts` hosts with the GPUs of `--gpus` each. Raises UsageError."""
    if not 1 <= hosts <= 1024:
        raise UsageError(f"--hosts {hosts}: from 1 to 1024", hint="--hosts 2")
    each = parse_gpus(gpus)
    return tuple(Site(f"host{number}", each, usual_fabric(each)) for number in range(1, hosts + 1))


def usual_fabric(gpus: Sequence[GpuModel]) -> Fabric:
    """Return the usual link between those GPUs in a server."""
    joined = ("A100", "A800", "H100", "H800", "H20", "B200", "V100")
    return "nvlink" if len(gpus) > 1 and gpus[0].name.startswith(joined) else "pcie"
