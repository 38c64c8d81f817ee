"""Measurements of services as text, built from the documents of `bench --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from clusterctl.reporting.escaping import one_line
from clusterctl.reporting.text import columns, moment

Document = Mapping[str, Any]

_HEADS = ("load", "service", "tokens/s", "estimate", "TTFT ms", "TPOT ms", "ITL ms", "ms")
_SECONDS = {"s": 1, "min": 60}


def bench_lines(documents: Sequence[Document], *, width: int | None = None) -> list[str]:
    """Return a table with a row per load and service, grouped by load, and the changes since
    earlier measurements."""
    loads = list(dict.fromkeys(one["load"]["text"] for one in documents))
    ordered = sorted(documents, key=lambda one: loads.index(one["load"]["text"]))

    units = list(dict.fromkeys(_unit(one["figures"]) for one in ordered))
    own = [unit for unit in units if unit != "tokens/s"]  # Each with a column
    rows = [(*_HEADS[:2], *own, *_HEADS[2:]), *(_row(one, own) for one in ordered)]
    idle = [index for index in range(len(rows[0])) if all(row[index] == "-" for row in rows[1:])]
    shown = [[cell for index, cell in enumerate(row) if index not in idle] for row in rows]

    first = documents[0]["load"]
    out = f", {first['output']} out" if any(one["figures"]["ttft_ms"] for one in ordered) else ""
    texts = any(not one["figures"]["sent"] for one in ordered)
    tokens = f"{first['prompt']} tokens in{out}; " if texts else ""
    notes = [f"{tokens}latencies are p50 / p95 / p99"]
    read = [_unit(one["figures"]) for one in ordered if _reads(one["figures"])]
    if read:
        measured = ", ".join(dict.fromkeys(read))
        notes.append(f"tokens/s of what is measured in {measured} are those read")
    sent = {one["service"]: one["figures"]["sent"] for one in ordered}
    notes += [f"{name}: {what}" for name, what in sent.items() if what]

    for one in ordered:
        name = f"{one['service']}, {one['load']['text']}"
        if failed := one["figures"]["failed"]:
            notes.append(f"{name}: {failed} requests failed")
        if earlier := one["earlier"]:
            notes.append(f"{name}: {_compared(earlier, one['figures'])}")
    return [*columns(shown, indent="", width=width), *map(one_line, notes)]


def start_lines(documents: Sequence[Document]) -> list[str]:
    """Return a row for each replica's cold and warm starts: medians of all runs, in seconds."""
    stages = list(dict.fromkeys(stage for one in documents for stage in one["stages"]))
    rows = [("replica", "start", "in all", *stages)]
    for replica, cold in dict.fromkeys((one["replica"], one["cold"]) for one in documents):
        same = [one for one in documents if (one["replica"], one["cold"]) == (replica, cold)]
        every = [one["seconds"] for one in same]
        spread = f" ({min(every):.1f} to {max(every):.1f})" if len(every) > 1 else ""
        of_stages = [median(one["stages"].get(stage, 0.0) for one in same) for stage in stages]
        whole = f"{median(every):.1f}{spread}"
        took = (f"{seconds:.1f}" for seconds in of_stages)
        rows.append((replica, "cold" if cold else "warm", whole, *took))
    note = "seconds, from the start of vLLM; cold: nothing compiled, but files may be in memory"
    return [*columns(rows, indent=""), note]


def _unit(figures: Mapping[str, Any]) -> str:
    return f"{figures['unit']}/{figures['per']}"


def _reads(figures: Mapping[str, Any]) -> bool:
    return bool(figures["unit"] != "tokens" and not figures["sent"])


def _in_unit(found: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    if figures["unit"] == "tokens":
        return f"{found['tokens_per_s']:,.1f}"
    return f"{found['units_per_s'] * _SECONDS[figures['per']]:,.1f}"


def _compared(earlier: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Return how a load compares with the last time, and whether the change is significant."""
    last = f"{_in_unit(earlier, figures)} {_unit(figures)} of {moment(earlier['time'])}"
    change = f"{earlier['change']:+.0%} against {last}, vLLM {earlier['vllm']}"
    if earlier["noise"] is None:
        return f"{change}; noise is unknown: --runs 3 measures it"
    if earlier["verdict"] == "the same":
        return f"{change}, within the noise of {earlier['noise']:.0%}"
    return f"{earlier['verdict']}: {change}, more than the noise of {earlier['noise']:.0%}"


def _row(one: Document, units: Sequence[str]) -> tuple[str, ...]:
    figures, predicted = one["figures"], one["predicted"]
    own = {_unit(figures): _in_unit(figures, figures)}
    tokens = figures["tokens_per_s"]
    estimate = "-"
    if predicted is not None:
        latencies = f"TTFT {predicted['first_token_ms']:,.0f}, TPOT {predicted['token_ms']:,.1f}"
        estimate = f"{predicted['tokens_per_s']:,.0f} ({predicted['off']:+.0%}), {latencies}"
    return (
        one["load"]["text"],
        one["service"],
        *(own.get(unit, "-") for unit in units),
        f"{tokens:,.1f}" if tokens else "-",
        estimate,
        *(_percentiles(figures[f"{name}_ms"]) for name in ("ttft", "tpot", "itl")),
        _percentiles(figures["e2el_ms"]),
    )


def _percentiles(found: Mapping[str, float]) -> str:
    return " / ".join(f"{value:,.1f}" for value in found.values()) or "-"
