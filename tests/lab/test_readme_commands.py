"""The README's main command, as a reader would run it: from nothing to a completion."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.lab import lifecycle, network
from tests.lab.cluster import quiet

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(3600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_lab() -> Iterator[None]:
    lifecycle.down(say=quiet)
    yield
    lifecycle.down(say=quiet)


def test_the_demo_goes_from_nothing_to_a_completion(tmp_path: Path) -> None:
    assert "scripts/demo.sh" in (ROOT / "README.md").read_text()
    done = subprocess.run(
        ["scripts/demo.sh", "--down"],
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    seen = done.stdout + done.stderr
    assert done.returncode == 0, seen
    for words in (
        "$ clusterctl bootstrap inventory/lab.yaml",
        "$ clusterctl serve qwen2.5-1.5b --tp 2",
        "rank 0 gpu1 (10.77.0.11), rank 1 gpu2 (10.77.0.12)",
        "random weights",
        "healthy",
        '"object":"text_completion"',
        "the lab is down",
    ):
        assert words in seen, seen
    outcomes = re.findall(r"([1-9]\d*) answered, 0 failed, (\d+) cut short\.", seen)
    assert len(outcomes) == 3, seen  # A rank killed, other flags, and another image
    assert [cut for _, cut in outcomes[1:]] == ["0", "0"], seen
    answered, cut = map(int, outcomes[0])
    assert cut <= answered / 10, seen  # A stream whose engine is killed cannot go on
    assert not network.namespaces()
