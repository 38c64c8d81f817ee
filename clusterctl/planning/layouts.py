"""The layouts that fit these GPUs, best first, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import ClusterctlError
from clusterctl.models.shape import ModelShape
from clusterctl.planning.foreseen import possible_tp
from clusterctl.planning.options import ServeOptions
from clusterctl.planning.outcome import FitPlan
from clusterctl.planning.partition import best_split
from clusterctl.planning.placement import Placement, Site, seat_ranks
from clusterctl.planning.rules import Rules
from clusterctl.planning.speed import NETWORK, Link, Speed, speed_of

FAST_NETWORK = 20e9
"""Bytes/s from which TP across hosts is proposed unasked: RDMA at 200 Gbit/s and more. Over a
4 GB/s link TP 2 reached a seventh of one GPU's throughput."""

_MOST_STAGES = 16
_OFFERED_PER_TP = 2


@dataclass(frozen=True, slots=True)
class Proposal:
    """A layout with its plan (of one replica) and its estimated speed (of all)."""

    plan: FitPlan
    speed: Speed
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.plan.to_json(), "speed": self.speed.to_json(), "reason": self.reason}


def propose(
    shape: ModelShape,
    sites: Sequence[Site],
    options: ServeOptions,
    rules: Rules,
    network: Link = NETWORK,
) -> tuple[Proposal, ...]:
    """Layouts that fit, best first: by estimated tokens/s under load, certain ones before tight
    ones. Tensor parallel groups stay inside a host unless the network is fast."""
    fitting: list[Proposal] = []
    for tp in _tensor_sizes(shape, sites):
        plans = _plans(shape, tp, sites, options, rules, network)
        fitting += [_proposal(shape, plan, network) for plan in plans]
    return tuple(sorted(fitting, key=_rank))


def _tensor_sizes(shape: ModelShape, sites: Sequence[Site]) -> list[int]:
    """Powers of two that vLLM accepts; it takes 3, 5, 6 and 7 too, where nobody tests."""
    total = sum(len(site.gpus) for site in sites)
    return [tp for tp in possible_tp(shape, total) if tp & (tp - 1) == 0]


def _plans(
    shape: ModelShape,
    tp: int,
    sites: Sequence[Site],
    options: ServeOptions,
    rules: Rules,
    network: Link,
) -> Iterator[FitPlan]:
    """Plans with that TP, from one stage up. A stage more than what fits is offered too, for its
    larger cache; beyond that stages only add hops."""
    total = sum(len(site.gpus) for site in sites)
    found = 0
    for pp in range(1, min(total // tp, len(shape.layers), _MOST_STAGES) + 1):
        # A split that was given is one for as many stages, and no reason to offer no others.
        given = options if len(options.partition) == pp else replace(options, partition=())
        plan = best_seated(shape, tp, pp, sites, given, rules)
        if plan.placement.groups_cross_hosts and network.bandwidth < FAST_NETWORK:
            continue
        if plan.verdict != "does not fit":
            yield plan
        found += plan.verdict == "fits"
        if found == _OFFERED_PER_TP:
            return


def _rank(proposal: Proposal) -> tuple[bool, float, int]:
    placement = proposal.plan.placement
    used = placement.tp * placement.pp * placement.replicas
    return (proposal.plan.verdict != "fits", -round(proposal.speed.loaded, -1), used)


def best_seated(
    shape: ModelShape,
    tp: int,
    pp: int,
    sites: Sequence[Site],
    options: ServeOptions,
    rules: Rules,
) -> FitPlan:
    """The plan for TP x PP on the hosts in the order given, or with the largest GPUs first where
    only that fits; a head stays first. Raises DoesNotFit when there are too few GPUs."""
    ordered = sorted(
        sites, key=lambda site: (not site.head, -min(gpu.memory_gib for gpu in site.gpus))
    )
    found: list[FitPlan] = []
    for order in (sites, ordered):
        placement = _replicated(seat_ranks(order, tp, pp), order)
        plan = best_split(shape, placement, options, rules)
        if plan.verdict == "fits":
            return plan
        found.append(plan)
    return max(found, key=lambda plan: (plan.verdict == "tight", plan.kv_cache_tokens))


def _replicated(placement: Placement, sites: Sequence[Site]) -> Placement:
    """As many copies as the remaining GPUs of the same kinds hold."""
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
    """The sites less the GPUs that a placement uses; it takes them from the front."""
    used = [seat.host for seat in placement.seats]
    return tuple(
        replace(site, gpus=site.gpus[used.count(site.host) :])
        for site in sites
        if len(site.gpus) > used.count(site.host)
    )


def _proposal(shape: ModelShape, plan: FitPlan, network: Link) -> Proposal:
    speed = speed_of(shape, plan.placement, plan.settings.quantization, network)
    return Proposal(plan, speed, _reason(plan))


def _reason(plan: FitPlan) -> str:
    placement = plan.placement
    parts = [placement.reason]
    if placement.replicas > 1:
        parts.append(f"{placement.replicas} replicas side by side share nothing")
    if placement.partition:
        layers = ",".join(map(str, plan.partition))
        parts.append(f"layers split {layers}, since the GPUs differ")
    if plan.limited_by.unused_gib > 1 and len(plan.ranks) > 1:
        limit = plan.limited_by
        parts.append(f"{limit.gpu} on {limit.host} decides, {limit.unused_gib:.0f} GiB stay unused")
    if plan.verdict == "tight":
        parts.append("within the margin of error")
    return "; ".join(parts)
