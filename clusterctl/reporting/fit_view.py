"""A memory plan as text for the user, built from the document of `fit --json`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from clusterctl.reporting.text import below_itself, columns, each_below_itself

Document = Mapping[str, Any]

_HEADS = ("rank", "host", "GPU", "weights", "activations", "runtime", "graphs", "KV cache")
_SIZES = ("weights_gib", "activation_gib", "runtime_gib", "cuda_graphs_gib", "kv_cache_gib")
_SAME = ("host", "gpu", "layers", *_SIZES)

MOST_PROPOSALS = 6


def fit_lines(document: Document, *, width: int | None = None) -> list[str]:
    """Return the whole answer: a row per rank, the totals, the limiting rank, and alternatives.
    `width`: characters in a line of the terminal; None does not wrap."""
    return [
        *plan_lines(document, width=width),
        *_probe(document),
        *_foreseen(document, width),
        *_proposals(document, width),
        *each_below_itself("note: ", document["notes"], width),
    ]


def plan_lines(document: Document, *, width: int | None = None) -> list[str]:
    """Return one layout: its table and its totals."""
    sums = each_below_itself("", _sums(document), width)
    return [_title(document), f"  {document['reason']}", *_table(document), *sums]


def _title(document: Document) -> str:
    copies = f", {document['dp']} replicas" if document["dp"] > 1 else ""
    layout = f"TP {document['tp']}, PP {document['pp']}{copies}"
    return f"{document['model']}: {layout}, vLLM {document['vllm']}"


def _table(document: Document) -> list[str]:
    numbered = list(enumerate(document["ranks"]))
    split = len(set(document["layer_partition"])) > 1
    rows = [[*_HEADS, "layers"] if split else list(_HEADS)]
    for _, group in groupby(numbered, key=lambda pair: [pair[1][key] for key in _SAME]):
        alike = list(group)
        rows.append(_row([number for number, _ in alike], alike[0][1], split=split))
    return [*_right(rows), "  sizes in GiB for each rank"]


def _row(numbers: Sequence[int], rank: Document, *, split: bool) -> list[str]:
    name = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    sizes = [f"{rank[key]:.2f}" for key in _SIZES]
    return [name, rank["host"], rank["gpu"], *sizes, *([str(rank["layers"])] if split else [])]


def _right(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align numbers to the right of their columns."""
    widths = [max(len(row[index]) for row in rows) for index in range(3, len(rows[0]))]
    return columns(
        [
            [*row[:3], *(cell.rjust(w) for cell, w in zip(row[3:], widths, strict=True))]
            for row in rows
        ]
    )


def _sums(document: Document) -> list[str]:
    lines = [
        f"KV cache: {document['kv_cache_tokens']:,} tokens, {document['max_concurrency']:,.2f} "
        f"requests of {document['max_model_len']:,} tokens at once",
        _limit(document),
        _verdict(document),
    ]
    speed = document.get("speed")
    if speed and document["verdict"] != "does not fit" and not _on_cpus(document):
        one, many = speed["tokens_per_s_1"], speed["tokens_per_s_64"]
        lines.append(f"speed, an estimate: {one:,.0f} tokens/s alone, {many:,.0f} with 64 requests")
    return lines


def _limit(document: Document) -> str:
    limit = document["limited_by"]
    where = f"rank {limit['rank']} ({limit['host']}, {limit['gpu']})"
    unused = limit["unused_gib"]
    rest = f"; {unused:.1f} GiB stay unused on others" if unused >= 0.1 else ""
    return f"limited by {where}: {limit['reason']}{rest}"


def _verdict(document: Document) -> str:
    margin = max(rank["margin_gib"] for rank in document["ranks"])
    batch = f"{document['max_num_seqs']} requests, {document['max_num_batched_tokens']} tokens"
    error = f"margin of error {margin:.1f} GiB a rank; " if margin else ""
    return (
        f"{document['verdict']} ({error}--gpu-memory-utilization "
        f"{document['gpu_memory_utilization']:g}; a step takes up to {batch})"
    )


def _probe(document: Document) -> list[str]:
    """Return the result of the image's own vLLM, and its differences from the prediction."""
    probe = document.get("probe")
    if probe is None:
        return []
    lines = [
        f"asked vLLM {probe['vllm']} on {', '.join(probe['hosts'])}: "
        f"{probe['kv_cache_tokens']:,} tokens of KV cache, "
        f"{probe['max_concurrency']:,.2f} requests at once; predicted "
        f"{document['kv_cache_tokens']:,} and {document['max_concurrency']:,.2f}"
    ]
    differences = [
        f"  differs: {one['what']}, predicted {one['predicted']:,.2f}, vLLM says "
        f"{one['asked']:,.2f} ({one['off']:+.1%})"
        for one in probe["differences"]
    ]
    return lines + (differences or ["  weights, memory and cache agree within 1 %"])


def _foreseen(document: Document, width: int | None) -> list[str]:
    doubts = document["doubts"]
    found = [
        (
            "error: " if item["fatal"] and not doubts else "warning: ",
            f"{item['text']}; {item['hint']}",
        )
        for item in document["foreseen"]
    ]
    if doubts and any(item["fatal"] for item in document["foreseen"]):
        found.append(("not certain, so serve does not refuse it: ", "; ".join(doubts)))
    found += [
        (
            "would fit: ",
            f"{shlex.join(one['flags'])} ({one['text']}; "
            f"{one['kv_cache_tokens']:,} tokens of KV cache)",
        )
        for one in document["advice"]
    ]
    faster = document.get("faster")
    if faster and not _on_cpus(document):
        found.append(("faster, by estimate: ", f"{_layout(faster)}: {faster['reason']}"))
    return [line for lead, text in found for line in below_itself(lead, text, width)]


def _proposals(document: Document, width: int | None) -> list[str]:
    proposals = document["proposals"]
    if not proposals:
        return []
    timed = not _on_cpus(document)
    heads = ("layout", "KV tokens", *(["tokens/s at 64"] if timed else []), "why")
    rows = [heads, *(_proposal(one, timed=timed) for one in proposals[:MOST_PROPOSALS])]
    estimates = " (speeds are estimates)" if timed else ""
    return [f"layouts that fit, best first{estimates}:", *columns(rows, width=width)]


def _proposal(one: Document, *, timed: bool) -> tuple[str, ...]:
    speed = f"{one['speed']['tokens_per_s_64']:,.0f}"
    return _layout(one), f"{one['kv_cache_tokens']:,}", *([speed] if timed else []), one["reason"]


def _on_cpus(document: Document) -> bool:
    """Whether ranks run on CPUs, for which the speed model does not apply."""
    return any(rank["gpu"] == "CPU" for rank in document["ranks"])


def _layout(document: Document) -> str:
    """The layout as flags of `serve`."""
    words = [f"--tp {document['tp']}"]
    words += [f"--pp {document['pp']}"] if document["pp"] > 1 else []
    words += [f"-- --data-parallel-size {document['dp']}"] if document["dp"] > 1 else []
    return " ".join(words)
