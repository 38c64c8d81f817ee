"""A memory plan as text for the user, built from the document of `fit --json`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from clusterctl.reporting.text import below_itself, columns, each_below_itself

Document = Mapping[str, Any]

_HEADS = ("rank", "host", "GPU", "weights", "activations", "runtime", "graphs")
_SIZES = ("weights_gib", "activation_gib", "runtime_gib", "cuda_graphs_gib", "kv_cache_gib")
_SAME = ("host", "gpu", "layers", *_SIZES)

MOST_PROPOSALS = 6

# Options of `fit` itself
_OWN_FLAGS = ("--tp", "--pp", "--gpus", "--hosts", "--max-model-len", "--gpu-memory-utilization")


def fit_lines(document: Document, *, width: int | None = None) -> list[str]:
    """Return the whole answer: a row per rank, the totals, the limiting rank, and alternatives.
    `width`: characters in a line of the terminal; None does not wrap."""
    lines = plan_lines(document, width=width)
    lines += _foreseen(document, width)
    if proposals := document["proposals"]:
        timed = not _on_cpus(document)
        rows = [["layout", "KV tokens", *(["tokens/s at 64"] if timed else []), "why"]]
        for one in proposals[:MOST_PROPOSALS]:
            loaded = one["speed"].get("tokens_per_s_64")
            speed = f"{loaded:,.0f}" if loaded else "-"
            cells = [speed] if timed else []
            tokens = "-" if _without_cache(document) else f"{one['kv_cache_tokens']:,}"
            rows.append([_layout(one), tokens, *cells, one["reason"]])
        estimates = " (speeds are estimates)" if timed else ""
        lines += [f"layouts that fit, best first{estimates}:", *columns(rows, width=width)]
    return [*lines, *each_below_itself("note: ", document["notes"], width)]


def plan_lines(document: Document, *, width: int | None = None) -> list[str]:
    """Return one layout: its table and its totals."""
    copies = f", {document['dp']} replicas" if document["dp"] > 1 else ""
    layout = f"TP {document['tp']}, PP {document['pp']}{copies}"
    split = len(set(document["layer_partition"])) > 1
    last = "unused" if _without_cache(document) else "KV cache"
    rows = [[*_HEADS, last, "layers"] if split else [*_HEADS, last]]
    numbered = enumerate(document["ranks"])
    for _, group in groupby(numbered, key=lambda pair: [pair[1][key] for key in _SAME]):
        numbers, (rank, *_) = zip(*group, strict=True)
        name = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        sizes = [f"{rank[key]:.2f}" for key in _SIZES]
        layers = [str(rank["layers"])] if split else []
        rows.append([name, rank["host"], rank["gpu"], *sizes, *layers])
    # Numbers are aligned to the right of their columns.
    widths = [max(len(row[index]) for row in rows) for index in range(3, len(rows[0]))]
    right = [
        [*row[:3], *(cell.rjust(wide) for cell, wide in zip(row[3:], widths, strict=True))]
        for row in rows
    ]
    return [
        f"{document['model']}: {layout}, vLLM {document['vllm']}",
        f"  {document['reason']}",
        *columns(right),
        "  sizes in GiB for each rank",
        *each_below_itself("", _totals(document), width),
    ]


def _without_cache(document: Document) -> bool:
    """Whether its model generates nothing, so that it keeps no keys and values."""
    _, most = document["kv_cache_tokens_range"]
    return bool(document["longest_context"]) and not most


def _totals(document: Document) -> list[str]:
    limit = document["limited_by"]
    unused = limit["unused_gib"]
    rest = f"; {unused:.1f} GiB stay unused on others" if unused >= 0.1 else ""
    margin = max(rank["margin_gib"] for rank in document["ranks"])
    error = f"margin of error {margin:.1f} GiB a rank; " if margin else ""
    batch = f"{document['max_num_seqs']} requests, {document['max_num_batched_tokens']} tokens"
    least, most = document["kv_cache_tokens_range"]
    between = f" ({least:,} to {most:,})" if document["verdict"] == "unproven" else ""
    cache = (
        f"{document['kv_cache_tokens']:,} tokens{between}, {document['max_concurrency']:,.2f} "
        f"requests of {document['max_model_len']:,} tokens at once"
    )
    if _without_cache(document):
        cache = (
            f"none, as it generates nothing; texts of up to {document['max_model_len']:,} tokens"
        )
    lines = [
        f"KV cache: {cache}",
        f"limited by rank {limit['rank']} ({limit['host']}, {limit['gpu']}): "
        f"{limit['reason']}{rest}",
        f"{document['verdict']} ({error}--gpu-memory-utilization "
        f"{document['gpu_memory_utilization']:g}; a step takes up to {batch})",
    ]
    speed = document.get("speed")
    if (
        speed
        and document["verdict"] in ("fits", "may not fit", "unproven")
        and not _on_cpus(document)
    ):
        one, some, many = (speed[f"tokens_per_s_{requests}"] for requests in (1, 64, 256))
        lines.append(
            f"speed, an estimate: {one:,.0f} tokens/s alone, {some:,.0f} with 64 requests, "
            f"{many:,.0f} with 256"
        )
    return lines


def _foreseen(document: Document, width: int | None) -> list[str]:
    doubts = document["doubts"]
    found = []
    for item in document["foreseen"]:
        lead = "error: " if item["fatal"] and not doubts else "warning: "
        found.append((lead, f"{item['text']}; {item['hint']}"))
    if doubts and any(item["fatal"] for item in document["foreseen"]):
        found.append(("not certain, so serve does not refuse it: ", "; ".join(doubts)))
    for one in document["advice"]:
        tokens = f"{one['kv_cache_tokens']:,} tokens of KV cache"
        found.append(("would fit: ", f"{_flags(one['flags'])} ({one['text']}; {tokens})"))
    faster = document.get("faster")
    if faster and not _on_cpus(document):
        found.append(("faster, by estimate: ", f"{_layout(faster)}: {faster['reason']}"))
    return [line for lead, text in found for line in below_itself(lead, text, width)]


def _flags(flags: Sequence[str]) -> str:
    """Return flags as `fit` accepts them: vLLM's other flags after `--`, variables last."""
    own: list[str] = []
    rest: list[str] = []
    variables = [word for word in flags if not word.startswith("-") and "=" in word]
    into = own
    for word in flags:
        if word.startswith("--"):
            into = own if word in _OWN_FLAGS else rest
        if word not in variables:
            into.append(word)
    words = shlex.join([*own, *(["--", *rest] if rest else [])])
    return " with ".join([words, *variables])


def _on_cpus(document: Document) -> bool:
    """Whether ranks run on CPUs, to which the speed model does not apply."""
    return any(rank["gpu"] == "CPU" for rank in document["ranks"])


def _layout(document: Document) -> str:
    """The layout as flags of `serve`."""
    words = [f"--tp {document['tp']}"]
    words += [f"--pp {document['pp']}"] if document["pp"] > 1 else []
    words += [f"-- --data-parallel-size {document['dp']}"] if document["dp"] > 1 else []
    return " ".join(words)
