"""The true cause of real logs that were held out when the rules were written."""

from __future__ import annotations

from pathlib import Path

from clusterctl.diagnosis.kinds import kinds
from clusterctl.diagnosis.rules import rules
from tests.bench.diagnosis import (
    HEALTHY,
    calibration,
    failures_of_2026,
    first_runs,
    held_out_failures,
    logs,
    logs_of_2026,
    measure,
)

ROOT = Path(__file__).parents[3]


def test_logs_are_of_known_causes_and_a_third_of_their_sources_is_held_out() -> None:
    known = {rule.id for rule in rules()} | {kind.id for kind in kinds()}
    assert {log.cause for log in logs()} <= known | {HEALTHY}
    assert len({log.source for log in logs()}) == len(logs()) > 200
    assert 0.28 < sum(log.held_out for log in logs()) / len(logs()) < 0.38


def test_the_first_cause_of_the_third_that_was_held_out_is_mostly_the_true_one() -> None:
    got = measure(log for log in logs() if log.held_out)
    assert got.right >= 119
    assert got.wrong <= 2


def test_the_docs_say_how_often_the_first_run_over_new_failures_was_right() -> None:
    run = first_runs()["third"]
    share = f"{100 * run.right / run.failures:.0f} %"
    words = f"right for {share} of {run.failures} failures of 2026 before it knew them"
    assert words in (ROOT / "docs/commands.md").read_text(encoding="utf-8")


def test_the_first_cause_of_logs_that_rules_were_mended_with_is_the_true_one() -> None:
    assert measure(log for log in logs() if not log.held_out).right_share >= 98


def test_healthy_starts_with_frightening_lines_stay_silent() -> None:
    assert measure(log for log in logs() if log.cause == HEALTHY).healthy_called_sick == 0


def test_of_failures_of_2026_the_cause_or_the_line_that_matters_is_named() -> None:
    sick = [log for log in logs_of_2026() if log.cause != HEALTHY]
    assert len(sick) >= 140
    assert sum(log.right for log in sick) / len(sick) >= 0.97


def test_no_healthy_start_of_2026_is_called_a_failure() -> None:
    healthy = [log for log in logs_of_2026() if log.cause == HEALTHY]
    assert len(healthy) >= 40
    assert all(log.right for log in healthy)


def test_what_is_called_certain_is_right_and_nothing_is_passed_over_often() -> None:
    found = calibration([*held_out_failures(), *failures_of_2026()])
    right, named = found["certain"]
    assert right / named >= 0.97
    assert found.get("silent", (0, 0))[1] <= 2
