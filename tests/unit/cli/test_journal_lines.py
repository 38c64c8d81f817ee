"""Journals of several hosts as one story."""

from __future__ import annotations

import json

import pytest

from clusterctl.cli.logs import by_time, journal_line


def entry(time: float, text: str) -> str:
    return json.dumps({"time": time, "subject": "tiny", "event": "ready", "text": text})


def test_entries_are_sentences_and_anything_else_as_it_is() -> None:
    assert journal_line("gpu1", entry(0, "after 3 s")).endswith("gpu1  tiny: ready after 3 s")
    assert journal_line("gpu2", "no such log") == "gpu2  no such log"
    assert journal_line("gpu2", "[1]") == "gpu2  [1]"


def test_hosts_are_merged_by_time() -> None:
    late, early = ("gpu1", entry(2, "b")), ("gpu2", entry(1, "a"))
    assert list(by_time([late, early])) == [early, late]


@pytest.mark.parametrize("damaged", ["soon", None, [1], 1e300, float("nan")])
def test_a_damaged_time_is_no_traceback(damaged: object) -> None:
    line = json.dumps({"time": damaged, "subject": "tiny", "event": "ready"})
    assert journal_line("gpu1", line).endswith("gpu1  tiny: ready")
    assert len(list(by_time([("gpu1", line), ("gpu2", entry(1, "a"))]))) == 2
