"""The prediction beside what vLLM reported, and what a host should remember of it."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.planning.outcome import FitPlan
from clusterctl.planning.overheads import Measured
from clusterctl.planning.rules import Rules

WORTH_SAYING = 0.01
"""A share by which prediction and report differ from which on a user is told."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What vLLM's log printed for one rank, in GiB; None is not printed."""

    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    graphs_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure. `off`: share by which the prediction differs, positive when too high."""

    name: str
    predicted: float
    reported: float

    @property
    def off(self) -> float:
        """0.01 is a prediction 1 % too high."""
        return self.predicted / self.reported - 1 if self.reported else 0.0

    @property
    def worth_saying(self) -> bool:
        """Whether the difference is one to mention."""
        return abs(self.off) > WORTH_SAYING


def compare(plan: FitPlan, reported: Reported, rank: int = 0) -> tuple[Comparison, ...]:
    """Every figure that was printed for that rank."""
    memory = plan.ranks[rank]
    pairs = (
        ("weights_gib", memory.weights_gib, reported.weights_gib),
        ("kv_cache_gib", memory.kv_cache_gib, reported.kv_cache_gib),
        ("cuda_graphs_gib", memory.cuda_graphs_gib, reported.graphs_gib),
        ("kv_cache_tokens", plan.kv_cache_tokens, reported.kv_cache_tokens),
        ("max_concurrency", plan.max_concurrency, reported.max_concurrency),
    )
    return tuple(Comparison(name, said, seen) for name, said, seen in pairs if seen is not None)


def learn(plan: FitPlan, reported: Reported, rules: Rules, rank: int = 0) -> Measured:
    """The overhead that this start had on that rank's GPU, for the next plan.

    What vLLM may use, less the weights and the cache it printed and the activations computed
    here, is the runtime's. Nothing is learned from a cache whose size was given, or where the
    log says too little; nor from less than nothing: such a start found its model compiled and
    was spared the peak of that, which the next one may have to pay.
    """
    memory = plan.ranks[rank]
    if reported.kv_cache_gib is None or plan.options.kv_cache_bytes is not None:
        return Measured(graphs_gib=reported.graphs_gib)
    weights = memory.weights_gib if reported.weights_gib is None else reported.weights_gib
    graphs = memory.cuda_graphs_gib if reported.graphs_gib is None else reported.graphs_gib
    counted = rules.charges_graphs(second_runner=plan.settings.second_runner)
    charged = graphs if counted else 0.0
    used = weights + memory.activation_gib + charged + reported.kv_cache_gib
    runtime = memory.usable_gib - used
    return Measured(runtime_gib=runtime if runtime > 0 else None, graphs_gib=reported.graphs_gib)
