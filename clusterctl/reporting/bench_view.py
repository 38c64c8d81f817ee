"""Measurements of services as text, built from the documents of `bench --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.reporting.escaping import one_line
from clusterctl.reporting.text import columns, moment

Document = Mapping[str, Any]

_HEADS = (
    "load",
    "service",
    "tokens/s",
    "estimate",
    "TTFT ms",
    "TPOT ms",
    "ITL ms",
    "texts/s",
    "ms",
)


def bench_lines(documents: Sequence[Document], *, width: int | None = None) -> list[str]:
    """Return a table with a row per load and service, grouped by load, and the changes since
    earlier measurements."""
    loads = list(dict.fromkeys(one["load"]["text"] for one in documents))
    ordered = sorted(documents, key=lambda one: loads.index(one["load"]["text"]))
    rows = [_HEADS, *(_row(one) for one in ordered)]
    idle = [index for index in range(len(_HEADS)) if all(row[index] == "-" for row in rows[1:])]
    shown = [[cell for index, cell in enumerate(row) if index not in idle] for row in rows]
    first = documents[0]["load"]
    out = f", {first['output']} out" if any(one["figures"]["ttft_ms"] for one in ordered) else ""
    notes = [f"{first['prompt']} tokens in{out}; latencies are p50 / p95 / p99"]
    if any(one["figures"]["units_per_s"] for one in ordered):
        notes.append("tokens/s of what answers in texts/s are those read")
    for one in ordered:
        name = f"{one['service']}, {one['load']['text']}"
        if failed := one["figures"]["failed"]:
            notes.append(f"{name}: {failed} requests failed")
        if earlier := one["earlier"]:
            notes.append(f"{name}: {_compared(earlier)}")
    return [*columns(shown, indent="", width=width), *map(one_line, notes)]


def _compared(earlier: Mapping[str, Any]) -> str:
    """Return how a load compares with the last time, and whether the change is significant."""
    last = f"{earlier['tokens_per_s']:,.1f} tokens/s of {moment(earlier['time'])}"
    change = f"{earlier['change']:+.0%} against {last}, vLLM {earlier['vllm']}"
    if earlier["noise"] is None:
        return f"{change}; noise is unknown: --runs 3 measures it"
    if earlier["verdict"] == "the same":
        return f"{change}, within the noise of {earlier['noise']:.0%}"
    return f"{earlier['verdict']}: {change}, more than the noise of {earlier['noise']:.0%}"


def _row(one: Document) -> tuple[str, ...]:
    figures, predicted = one["figures"], one["predicted"]
    estimate = "-"
    if predicted is not None:
        latencies = f"TTFT {predicted['first_token_ms']:,.0f}, TPOT {predicted['token_ms']:,.1f}"
        estimate = f"{predicted['tokens_per_s']:,.0f} ({predicted['off']:+.0%}), {latencies}"
    return (
        one["load"]["text"],
        one["service"],
        f"{figures['tokens_per_s']:,.1f}",
        estimate,
        *(_percentiles(figures[f"{name}_ms"]) for name in ("ttft", "tpot", "itl")),
        f"{figures['units_per_s']:,.1f}" if figures["units_per_s"] else "-",
        _percentiles(figures["e2el_ms"]),
    )


def _percentiles(found: Mapping[str, float]) -> str:
    return " / ".join(f"{value:,.1f}" for value in found.values()) or "-"
