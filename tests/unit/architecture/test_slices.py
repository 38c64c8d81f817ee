"""No test of whole hosts is run by nobody: each file is in the core or in a slice."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[3]
CORE = set(re.findall(r"tests/lab/test_\w+\.py", (ROOT / "scripts/test.sh").read_text()))


def slices() -> list[list[str]]:
    lines = (ROOT / "tests/slices.txt").read_text().splitlines()
    return [shlex.split(line)[1:] for line in lines if not line.startswith("#")]


def test_every_file_is_in_the_core_or_in_a_slice() -> None:
    named = {word for words in slices() for word in words if word.endswith(".py")}
    files = {
        str(path.relative_to(ROOT))
        for room in ("lab", "machines", "vllm")
        for path in (ROOT / "tests" / room).glob("test_*.py")
    }
    assert files <= named | CORE
    assert all((ROOT / file).is_file() for file in named)


def test_long_tests_of_the_cores_files_are_in_a_slice() -> None:
    named = {word for words in slices() for word in words}
    unit = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit").rglob("test_*.py")}
    own = str(Path(__file__).relative_to(ROOT))
    with_long_ones = {
        file for file in CORE | unit - {own} if "pytest.mark.long" in (ROOT / file).read_text()
    }
    assert with_long_ones <= named


def test_a_slice_that_is_split_by_names_is_whole() -> None:
    """Two slices of one file select what the other leaves."""
    chosen: dict[str, list[str]] = {}
    for words in slices():
        if "-k" in words:
            chosen.setdefault(words[0], []).append(words[words.index("-k") + 1])
    for file, (one, other) in chosen.items():
        assert other == f"not ({one})", file
