"""Memory figures reported in vLLM's log (0.7.1 to 0.32), compared with the forecast.

The overheads of a start are stored in a file on the head, and replace the usual figures in the next
forecast for the same GPU and image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clusterctl import deadlines
from clusterctl.errors import MALFORMED, ClusterctlError
from clusterctl.node.documents import measured_dir
from clusterctl.node.files import NodePaths
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.options import settings_key
from clusterctl.planning.overheads import Measured
from clusterctl.planning.rules import Rules, rules_for
from clusterctl.serving.notices import LOG_TAIL, READ, START_MARKS
from clusterctl.transport.base import Transport

WORTH_SAYING = 0.01  # Larger relative differences of forecast and report are shown


@dataclass(frozen=True, slots=True)
class Reported:
    """Figures that vLLM printed for one rank, in GiB; None if not printed."""

    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    graphs_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure, as predicted and as reported."""

    name: str
    predicted: float
    reported: float

    @property
    def off(self) -> float:
        """The relative error: 0.01 means that the forecast is 1 % too high."""
        return self.predicted / self.reported - 1 if self.reported else 0.0

    @property
    def worth_saying(self) -> bool:
        return abs(self.off) > WORTH_SAYING


def compare(plan: FitPlan, reported: Reported, rank: int = 0) -> tuple[Comparison, ...]:
    """Compare every figure printed for that rank."""
    memory = plan.ranks[rank]
    pairs = (
        ("weights_gib", memory.weights_gib, reported.weights_gib),
        ("kv_cache_gib", memory.kv_cache_gib, reported.kv_cache_gib),
        ("cuda_graphs_gib", memory.cuda_graphs_gib, reported.graphs_gib),
        ("kv_cache_tokens", plan.kv_cache_tokens, reported.kv_cache_tokens),
        ("max_concurrency", plan.max_concurrency, reported.max_concurrency),
    )
    return tuple(Comparison(name, said, seen) for name, said, seen in pairs if seen is not None)


def learn(plan: FitPlan, reported: Reported, rules: Rules) -> Measured:
    """Return the overhead of this start on the first rank's GPU, for the next forecast.

    The overhead is the memory that vLLM may use, less the printed weights and cache, the
    activations computed here, and CUDA graphs if vLLM deducts them. It is None if the cache size
    was given, if the log lacks a figure, or if the result is negative: vLLM then found its model
    already compiled and skipped the activation peak, which the next start may have.
    """
    memory, settings = plan.ranks[0], settings_key(plan.settings)
    if reported.kv_cache_gib is None or plan.options.kv_cache_bytes is not None:
        return Measured(graphs_gib=reported.graphs_gib, settings=settings)
    weights = memory.weights_gib if reported.weights_gib is None else reported.weights_gib
    graphs = memory.cuda_graphs_gib if reported.graphs_gib is None else reported.graphs_gib
    counted = rules.charges_graphs(second_runner=plan.settings.second_runner)
    charged = graphs if counted else 0.0
    used = weights + memory.activation_gib + charged + reported.kv_cache_gib
    runtime = memory.usable_gib - used
    return Measured(runtime if runtime > 0 else None, reported.graphs_gib, settings)


# The lines that are parsed here, for `grep -E`.
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

_SAME = 0.02  # Ranks whose weights differ by more hold different layers, so no figure fits all


def read_reported(text: str) -> Reported:
    """Parse the figures of the last start in a log.

    Uses the smallest of several cache sizes, since that rank limits the others. CUDA graphs are the
    size that vLLM deducted if printed, otherwise the size measured at capture.
    """
    starts = [match.start() for match in re.finditer(START_MARKS, text)]
    last = text[starts[-1] :] if starts else text
    caches = _numbers(_CACHE, last) or _numbers(_CACHE_V0, last)
    graphs = _numbers(_GRAPHS_CHARGED, last) or _numbers(_GRAPHS_TAKEN, last)
    concurrency = _numbers(_CONCURRENCY, last)
    tokens = _numbers(_TOKENS, last)
    blocks, context = _numbers(_BLOCKS_V0, last), _numbers(_CONTEXT, last)
    if not tokens and blocks and blocks[0] and context and concurrency:
        # The size of a block is not printed, but the next line has how many requests of how many
        # tokens all blocks hold, which gives whole tokens per block.
        tokens = [blocks[0] * round(concurrency[0] * context[0] / blocks[0])]
    weights = _numbers(_WEIGHTS, last)
    alike = weights and max(weights) - min(weights) <= _SAME * max(weights)
    return Reported(
        weights_gib=max(weights) if alike else None,
        kv_cache_gib=min(caches, default=None),
        graphs_gib=max(graphs, default=None),
        kv_cache_tokens=int(min(tokens)) if tokens else None,
        max_concurrency=min(concurrency, default=None),
    )


def _numbers(pattern: re.Pattern[str], text: str) -> list[float]:
    return [float(found.replace(",", "").rstrip(".")) for found in pattern.findall(text)]


# GiB by which a measured overhead may differ from the usual one. Beyond that, another process used
# the GPU during the start, which would distort every later forecast.
_PLAUSIBLE = 2.0

# Overheads reported by earlier starts, by host and GPU, then by TP size.
Learned = dict[tuple[str, str], tuple[tuple[int, Measured], ...]]


@dataclass(frozen=True)
class StartOutcome:
    """The figures of a start, compared with its forecast."""

    reported: Reported
    comparisons: tuple[Comparison, ...]

    @property
    def sentence(self) -> str:
        """The tokens of the KV cache, predicted and reported; empty if the log lacks them."""
        tokens = next((one for one in self.comparisons if one.name == "kv_cache_tokens"), None)
        if tokens is None:
            return ""
        said = f"predicted {tokens.predicted:,.0f} tokens, vLLM says {tokens.reported:,.0f}"
        return f"{said} ({tokens.off:+.1%})" if tokens.worth_saying else said

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": one.name,
                "predicted": round(one.predicted, 4),
                "reported": one.reported,
                "off": round(one.off, 5),
            }
            for one in self.comparisons
        ]


def outcome_of(head: Transport, cluster: str, service: str, plan: FitPlan) -> StartOutcome | None:
    """Compare the last start of a service with its plan, in one round trip.

    Returns None if the log has no figures, or cannot be read: such a failure must not affect the
    service.
    """
    log = str(NodePaths(cluster).log(service))
    argv = ["sh", "-c", READ, "reported", str(LOG_TAIL), log, WANTED]
    try:
        result = head.run(argv, sudo=True, timeout=deadlines.SMALL_FILE)
    except ClusterctlError:
        return None
    reported = read_reported(result.stdout)
    found = compare(plan, reported, plan.limited_by.rank)
    return StartOutcome(reported, found) if found else None


def measured_file(cluster: str) -> str:
    """Return the path on the head of the file with figures of earlier starts."""
    return f"{measured_dir(cluster)}/measured.json"


def measured_in(data: bytes | None, image: str, model: str) -> Learned:
    """Return the figures kept for starts of this model with this image; empty if the file is not
    valid."""
    found: dict[tuple[str, str], dict[int, Measured]] = {}
    for entry in _entries(data):
        try:
            if (entry["image"], entry["model"]) != (image, model):
                continue
            host, gpu, tp = str(entry["host"]), str(entry["gpu"]), int(entry["tp"])
            sizes = (entry["runtime_gib"], entry["graphs_gib"])
            runtime, graphs = (None if gib is None else float(gib) for gib in sizes)
            settings = str(entry["settings"])
        except MALFORMED:
            continue  # written by another version
        found.setdefault((host, gpu), {})[tp] = Measured(runtime, graphs, settings)
    return {
        key: tuple(sorted(by_tp.items(), key=lambda one: one[0])) for key, by_tp in found.items()
    }


def _entries(data: bytes | None) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(data or b"{}")
    except MALFORMED:
        return []
    starts = found.get("starts") if isinstance(found, dict) else None
    if not isinstance(starts, list):
        return []
    return [entry for entry in starts if isinstance(entry, dict)]


def lessons(
    plan: FitPlan, reported: Reported, image: str, hosts: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the entries to keep from this start, one for each of `hosts`, where its ranks are.

    Empty on CPUs, with pipeline stages or with mixed GPUs, where a printed figure does not apply to
    every rank; and if implausible, as when another process used the GPU.
    """
    ranks = plan.ranks
    kinds = {(rank.gpu, rank.memory_gib) for rank in ranks}
    if len(kinds) > 1 or plan.placement.pp > 1 or plan.placement.seats[0].gpu.is_cpu:
        return []
    measured = learn(plan, reported, rules_for(plan.vllm))
    runtime = measured.runtime_gib
    if runtime is None or abs(runtime - ranks[0].runtime_gib) > _PLAUSIBLE:
        return []
    return [
        {
            "host": host,
            "gpu": ranks[0].gpu,
            "image": image,
            "model": plan.model,
            "tp": plan.placement.tp,
            "runtime_gib": round(runtime, 4),
            "graphs_gib": measured.graphs_gib,
            "settings": measured.settings,
        }
        for host in sorted(set(hosts))
    ]


def with_lessons(data: bytes | None, new: Sequence[Mapping[str, Any]]) -> bytes | None:
    """Return the file's new content: `data` with the entries of `new`, which replace entries for
    the same host, GPU, image, model and TP size. None if nothing changes."""
    replaced = {_key(entry) for entry in new}
    old = _entries(data)
    kept = [entry for entry in old if _key(entry) not in replaced]
    starts = sorted((*kept, *new), key=lambda entry: repr(_key(entry)))
    if not new or starts == sorted(old, key=lambda entry: repr(_key(entry))):
        return None
    return (json.dumps({"starts": starts}, indent=1) + "\n").encode()


def keep(head: Transport, file: str, content: bytes | None) -> None:
    """Write the file unless `content` is None. A failure, as on a full disk, is ignored."""
    if content is not None:
        with suppress(ClusterctlError):
            head.put(content, file, mode=0o644, sudo=True)


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("host", "gpu", "image", "model", "tp"))
