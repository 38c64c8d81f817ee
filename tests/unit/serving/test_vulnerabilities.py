"""Known vulnerabilities by release."""

from __future__ import annotations

import pytest

from clusterctl.models.version import parse_version
from clusterctl.serving.vulnerabilities import KNOWN, vulnerabilities_of, vulnerability_notes


@pytest.mark.parametrize(
    ("versions", "count"),
    [
        ({"vllm": "0.13.0"}, 8),
        ({"vllm": "0.17.0"}, 7),
        ({"vllm": "0.19.1"}, 7),
        ({"vllm": "0.21.0"}, 6),
        ({"vllm": "0.29.0", "ray": "2.53.0"}, 7),
        ({"vllm": "0.29.0"}, 5),
        ({"vllm": "0.30.1"}, 3),
        ({"vllm": "0.31.0+cpu"}, 2),
        ({"vllm": "0.32.0"}, 0),
        ({"vllm": "v0.33.0", "ray": "2.60.0"}, 1),
        ({"vllm": "0.33.0", "ray": "2.60.1"}, 0),
        ({"vllm": "nightly"}, 0),
        ({}, 0),
    ],
)
def test_a_release_has_those_that_a_later_one_fixes(versions: dict[str, str], count: int) -> None:
    assert len(vulnerabilities_of(versions)) == count


def test_a_note_names_each_and_the_release_that_fixes_all() -> None:
    (note,) = vulnerability_notes({"vllm": "0.30.0"})

    assert note.startswith("vLLM 0.30.0 has CVE-2026-114053 (a request to /tokenize can run code")
    assert note.endswith("fixed in 0.32.0")


def test_each_has_a_source_and_a_release() -> None:
    assert len({each.id for each in KNOWN}) == len(KNOWN)
    assert all(each.source and parse_version(each.fixed) for each in KNOWN)
