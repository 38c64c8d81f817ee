"""docs/security.md makes ten promises, and names tests that exist for each."""

from __future__ import annotations

import re
from pathlib import Path

from clusterctl.survey.promises import TITLES

ROOT = Path(__file__).parents[3]


def test_each_of_the_ten_promises_names_tests_that_exist() -> None:
    text = (ROOT / "docs/security.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    promises = [section for section in sections if re.match(r"\d+\. ", section)]
    assert [int(section.partition(".")[0]) for section in promises] == list(range(1, 11))
    titles = [section.splitlines()[0].partition(". ")[2] for section in promises]
    assert titles == list(TITLES), "what `check --security` prints"
    for promise in promises:
        title, _, held = promise.partition("\n\nHeld by: ")
        tests = re.findall(r"`(tests/[\w/]+\.py)`", held)
        assert tests, f"no test holds: {title.splitlines()[0]}"
        for test in tests:
            assert "def test_" in (ROOT / test).read_text(), test
