"""What vLLM's log says of memory, as it stands in the logs of 0.7.1 to 0.32."""

from __future__ import annotations

import re

from clusterctl.planning.reported import Reported

START_MARKS = r"non-default args|args: Namespace\(|API server version"
"""A line with one of these begins every start; older starts are in the same file."""

WANTED = (
    rf"{START_MARKS}|[Mm]odel (loading|weights) took|memory for cache|KV cache (memory|size)"
    r"|# CPU blocks|Maximum concurrency for|CUDA graph memory|Graph capturing finished"
    r"|model weights take"
)
"""For `grep -E`: the lines that are read here."""

_WEIGHTS = re.compile(r"(?:Model loading took|[Mm]odel weights took) ([\d.]+) ?Gi?B")
_CACHE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_CACHE_V0 = re.compile(r"reserved for KV Cache is ([\d.]+) ?GiB")
_TOKENS = re.compile(r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens")
_BLOCKS_V0 = re.compile(r"# \w+ blocks: (\d+), # CPU blocks: \d+")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d,.]+)x")
_CONTEXT = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request")
_GRAPHS_CHARGED = re.compile(r"Estimated CUDA graph memory: ([\d.]+) GiB")
_GRAPHS_TAKEN = re.compile(r"Graph capturing finished in .*took ([\d.]+) GiB")

_SAME = 0.02
"""Ranks whose weights differ by more hold different layers: no one figure is theirs."""


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
