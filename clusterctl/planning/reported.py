"""What vLLM's log says of memory, as it stands in the logs of 0.7.1 to 0.32, beside the prediction;
and what a host should remember of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.planning.memory import FitPlan
from clusterctl.planning.overheads import Measured
from clusterctl.planning.rules import Rules

WORTH_SAYING = 0.01  # A share by which prediction and report differ from which on a user is told


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


# A line with one of these begins every start; older starts are in the same file.
START_MARKS = r"non-default args|args: Namespace\(|API server version"

# For `grep -E`: the lines that are read here.
WANTED = (
    rf"{START_MARKS}|[Mm]odel (loading|weights) took|memory for cache|KV cache (memory|size)"
    r"|# CPU blocks|Maximum concurrency for|CUDA graph memory|Graph capturing finished"
    r"|model weights take"
)

_WEIGHTS = re.compile(r"(?:Model loading took|[Mm]odel weights took) ([\d.]+) ?Gi?B")
_CACHE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_CACHE_V0 = re.compile(r"reserved for KV Cache is ([\d.]+) ?GiB")
_TOKENS = re.compile(r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens")
_BLOCKS_V0 = re.compile(r"# \w+ blocks: (\d+), # CPU blocks: \d+")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d,.]+)x")
_CONTEXT = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request")
_GRAPHS_CHARGED = re.compile(r"Estimated CUDA graph memory: ([\d.]+) GiB")
_GRAPHS_TAKEN = re.compile(r"Graph capturing finished in .*took ([\d.]+) GiB")

_SAME = 0.02  # Ranks whose weights differ by more hold different layers: no one figure is theirs


def read_reported(text: str) -> Reported:
    """The figures of the last start in a log.

    Of the cache's GiB, the smallest that a rank printed, since that rank decides; the graphs'
    as vLLM charged them where it says so, else as they were taken.
    """
    last = _last_start(text)
    caches = _numbers(_CACHE, last) or _numbers(_CACHE_V0, last)
    graphs = _numbers(_GRAPHS_CHARGED, last) or _numbers(_GRAPHS_TAKEN, last)
    concurrency = _numbers(_CONCURRENCY, last)
    tokens = _numbers(_TOKENS, last) or _tokens_v0(last, concurrency)
    return Reported(
        weights_gib=_common(_numbers(_WEIGHTS, last)),
        kv_cache_gib=min(caches, default=None),
        graphs_gib=max(graphs, default=None),
        kv_cache_tokens=int(min(tokens)) if tokens else None,
        max_concurrency=min(concurrency, default=None),
    )


def _tokens_v0(text: str, concurrency: list[float]) -> list[float]:
    """What the blocks hold. Nothing prints how long one is, but the next line does say how many
    requests of how many tokens all of them hold: whole tokens a block come of it."""
    blocks, context = _numbers(_BLOCKS_V0, text), _numbers(_CONTEXT, text)
    if not (blocks and blocks[0] and context and concurrency):
        return []
    return [blocks[0] * round(concurrency[0] * context[0] / blocks[0])]


def _last_start(text: str) -> str:
    starts = [match.start() for match in re.finditer(START_MARKS, text)]
    return text[starts[-1] :] if starts else text


def _numbers(pattern: re.Pattern[str], text: str) -> list[float]:
    return [float(found.replace(",", "").rstrip(".")) for found in pattern.findall(text)]


def _common(values: list[float]) -> float | None:
    if not values or max(values) - min(values) > _SAME * max(values):
        return None
    return max(values)
