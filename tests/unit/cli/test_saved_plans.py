"""`plan -o FILE` and `bootstrap --plan FILE` where a host does not answer, or the file is none."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Run


def test_a_plan_that_is_not_whole_shows_all_problems_and_writes_nothing(
    clusterctl: Run, inventory: Path, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    ran = clusterctl("plan", str(inventory), "-o", str(file))
    assert ran.returncode == 4, ran.stderr
    assert "not the whole plan" in ran.stderr
    assert "error: gone: " in " ".join(ran.stderr.split())
    assert f"note: {file} was not written" in ran.stderr
    assert not file.exists()


def test_a_file_that_is_no_plan_ends_before_any_host_is_asked(
    clusterctl: Run, inventory: Path
) -> None:
    ran = clusterctl("bootstrap", str(inventory), "--plan", str(inventory))
    assert ran.returncode == 2
    assert "is not a plan of clusterctl" in ran.stderr
    assert "gone" not in ran.stderr
