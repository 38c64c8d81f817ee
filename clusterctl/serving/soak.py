"""The rounds of a soak, and their verdict: whether the cluster held up, and what was slow. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from clusterctl.serving.bench import BenchFigures

# A round is slow from this much below the median on, or from five median deviations if that is
# more: 3.4 standard deviations of a normal distribution
_SLOW, _DEVIATIONS = 0.15, 5.0
_SLOW_REPLICA = 1.5  # Times the median of all replicas
_LEAST_ROUNDS = 4  # Fewer have no usual speed


@dataclass(frozen=True)
class SoakRound:
    """One measurement, the fabric gate after it, and the status after that."""

    time: float  # Unix seconds
    figures: BenchFigures | None  # None if the measurement failed
    gate_mbit_s: float | None  # Mbit/s of the collective between hosts; None without one
    problems: tuple[str, ...] = ()  # Of the measurement, the gate and the hosts
    restarts: Mapping[str, int] = field(default_factory=dict)  # By replica, since the soak began
    # Median seconds of a request by replica; of those that answered any
    request: Mapping[str, float] = field(default_factory=dict)


def findings(rounds: Sequence[SoakRound]) -> list[str]:
    """Return what was wrong, a sentence each; empty if the cluster held up."""
    found = [f"{text} ({times} of {len(rounds)} rounds)" for text, times in _problems(rounds)]
    failed = sum(one.figures.failed for one in rounds if one.figures)
    if failed:
        found.append(f"{failed} requests failed")
    last = rounds[-1].restarts if rounds else {}
    found += [f"{name} was restarted {times} times" for name, times in last.items() if times]
    tokens = [(one.time, one.figures.tokens_per_s) for one in rounds if one.figures]
    found += _slow_rounds(tokens, "tokens/s")
    gates = [(one.time, one.gate_mbit_s) for one in rounds if one.gate_mbit_s is not None]
    found += _slow_rounds(gates, "Mbit/s between hosts")
    return [*found, *_slow_replicas(rounds)]


def totals(rounds: Sequence[SoakRound]) -> str:
    """Return what all rounds measured, in one line."""
    measured = [one.figures for one in rounds if one.figures]
    if not measured:
        return "nothing could be measured"
    whole = sum(figures.completed for figures in measured)
    failed = sum(figures.failed for figures in measured)
    rate = median(figures.tokens_per_s for figures in measured)
    parts = [f"{whole:,} requests answered, {failed:,} failed", f"{rate:,.0f} tokens/s"]
    gates = [one.gate_mbit_s for one in rounds if one.gate_mbit_s is not None]
    if gates:
        parts.append(f"{median(gates):,.0f} Mbit/s between hosts")
    return f"{', '.join(parts)} (medians of {len(rounds)} rounds)"


def _problems(rounds: Sequence[SoakRound]) -> list[tuple[str, int]]:
    return Counter(text for one in rounds for text in one.problems).most_common()


def _slow_rounds(measured: Sequence[tuple[float, float]], unit: str) -> list[str]:
    if len(measured) < _LEAST_ROUNDS:
        return []
    usual = median(value for _, value in measured)
    deviation = median(abs(value - usual) for _, value in measured)
    limit = usual - max(_SLOW * usual, _DEVIATIONS * deviation)
    slow = [(when, value) for when, value in measured if value < limit]
    start = measured[0][0]
    return [
        f"{value:,.1f} {unit} after {(when - start) / 60:.0f} min, usually {usual:,.1f}"
        for when, value in slow
    ]


def _slow_replicas(rounds: Sequence[SoakRound]) -> list[str]:
    names = {name for one in rounds for name in one.request}
    usual = {
        name: median(one.request[name] for one in rounds if name in one.request) for name in names
    }
    if len(usual) < 2:
        return []
    # Of an even number the lower one in the middle, so that of two the slow one is seen
    middle = sorted(usual.values())[(len(usual) - 1) // 2]
    return [
        f"{name} takes {seconds:.2f} s for a request in the median, others {middle:.2f} s"
        for name, seconds in sorted(usual.items())
        if seconds > _SLOW_REPLICA * middle
    ]
