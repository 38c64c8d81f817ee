"""Builds whose downloads fail: tried again, from nothing, and not for ever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterctl.errors import StepFailed
from clusterctl.lab import base, builds
from clusterctl.lab.base import AptSource

SOURCE = AptSource("http://deb.example/debian", "bookworm", ("main",))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Two builds that leave half a tree, and one that works: what each found there."""
    found: list[list[str]] = []

    def build(argv: Sequence[str], *, log: Path) -> None:
        tree = Path(argv[-2])
        found.append([path.name for path in tree.iterdir()] if tree.exists() else [])
        tree.mkdir(exist_ok=True)
        (tree / "half").touch()
        if len(found) < 3:
            raise StepFailed("`debootstrap` ended with status 1")

    monkeypatch.setattr(builds, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(base, "run_build", build)
    return found


def test_a_tree_whose_download_failed_is_made_anew(
    failing: list[list[str]], tmp_path: Path
) -> None:
    base.debootstrap(tmp_path / "tree", SOURCE, ("sudo",))
    assert failing == [[], [], []], "each try begins with nothing"


def test_three_failures_are_enough(failing: list[list[str]], tmp_path: Path) -> None:
    tries = 0

    def build() -> None:
        nonlocal tries
        tries += 1
        raise StepFailed("no such server")

    with pytest.raises(StepFailed, match="no such server"):
        builds.persistently(build)
    assert tries == 3
