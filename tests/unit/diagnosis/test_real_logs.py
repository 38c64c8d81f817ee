"""The true cause of real logs that were held out when the rules were written."""

from __future__ import annotations

from pathlib import Path

from clusterctl.diagnosis.rules import rules
from tests.bench.diagnosis import HEALTHY, logs, measure

ROOT = Path(__file__).parents[3]


def test_logs_are_of_known_causes_and_a_third_of_their_sources_is_held_out() -> None:
    assert {log.cause for log in logs()} <= {rule.id for rule in rules()} | {HEALTHY}
    assert len({log.source for log in logs()}) == len(logs()) > 200
    assert 0.28 < sum(log.held_out for log in logs()) / len(logs()) < 0.38


def test_the_first_cause_of_held_out_logs_is_mostly_the_true_one_as_the_docs_say() -> None:
    got = measure(log for log in logs() if log.held_out)
    assert got.right_share >= 85
    assert f"for {got.right_share:.0f} % of those held out while rules were mended" in (
        ROOT / "docs/commands.md"
    ).read_text(encoding="utf-8")


def test_the_first_cause_of_logs_that_rules_were_mended_with_is_the_true_one() -> None:
    assert measure(log for log in logs() if not log.held_out).right_share >= 98


def test_healthy_starts_with_frightening_lines_stay_silent() -> None:
    assert measure(log for log in logs() if log.cause == HEALTHY).healthy_called_sick == 0
