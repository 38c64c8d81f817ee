"""The verdict of a soak: rounds in, sentences about what failed and who was slow out."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.serving.bench import BenchFigures
from clusterctl.serving.soak import SoakRound, findings, totals

FIGURES = BenchFigures(32, 0, 10.0, 3.2, 100.0, *({"p50": 1.0, "p95": 2.0, "p99": 3.0},) * 3)


def rounds(*tokens: float, gate: float | None = 900.0) -> list[SoakRound]:
    return [
        SoakRound(600.0 * at, replace(FIGURES, tokens_per_s=speed), gate)
        for at, speed in enumerate(tokens)
    ]


def test_ordinary_noise_is_no_finding() -> None:
    assert findings(rounds(100, 96, 103, 99, 101, 92)) == []
    assert findings([]) == []


def test_a_slow_round_is_named_with_its_time_and_the_usual_speed() -> None:
    assert findings(rounds(100, 96, 103, 60, 101, 99)) == [
        "60.0 tokens/s after 30 min, usually 99.5"
    ]
    # Too few rounds have no usual speed
    assert findings(rounds(100, 60, 100)) == []
    # What differs much from round to round has no slow one at 30 % less
    assert findings(rounds(100, 140, 70, 120, 80, 100)) == []


def test_slow_links_failures_and_restarts_are_findings() -> None:
    held = rounds(100, 100, 100, 100)
    held[2] = replace(held[2], gate_mbit_s=90.0)
    assert findings(held) == ["90.0 Mbit/s between hosts after 20 min, usually 900.0"]
    failed = replace(held[0], figures=replace(FIGURES, failed=3), gate_mbit_s=900.0)
    broken = replace(held[0], figures=None, problems=("gpu2: no answer",), restarts={"chat@2": 2})
    assert findings([failed, broken, broken]) == [
        "gpu2: no answer (2 of 3 rounds)",
        "3 requests failed",
        "chat@2 was restarted 2 times",
    ]


def test_totals_count_all_rounds() -> None:
    measured = [*rounds(100, 90, 110), replace(rounds(1)[0], figures=None)]
    assert totals(measured) == (
        "96 requests answered, 0 failed, 100 tokens/s, 900 Mbit/s between hosts "
        "(medians of 4 rounds)"
    )
    assert totals([replace(measured[0], figures=None)]) == "nothing could be measured"


def test_the_slow_one_of_two_replicas_is_named() -> None:
    times = {"chat": 1.0, "chat@2": 2.0}
    found = [replace(each, request=times) for each in rounds(100, 100, 100, 100)]
    assert findings(found) == ["chat@2 takes 2.00 s for a request in the median, others 1.00 s"]
    alike = [replace(each, request={"chat": 1.0, "chat@2": 1.4}) for each in found]
    assert findings(alike) == []
