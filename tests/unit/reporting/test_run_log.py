"""What clusterctl keeps for the operator is the operator's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.reporting.run_log import KEPT, run_log


def test_nobody_else_reads_logs_also_where_an_earlier_version_left_them_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "clusterctl" / "logs" / "demo").mkdir(mode=0o755, parents=True)
    with run_log("demo", "serve") as log:
        assert log is not None
        assert log.is_relative_to(tmp_path / "clusterctl")
    for directory in ("clusterctl", "clusterctl/logs/demo"):
        assert (tmp_path / directory).stat().st_mode & 0o777 == 0o700


def test_the_last_logs_of_each_command_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that starts `metrics` every minute must not remove the log of a failed bootstrap."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = tmp_path / "clusterctl/logs/demo"
    directory.mkdir(parents=True)
    earlier = [directory / f"20261122-2100{at:02}-7-metrics.log" for at in range(KEPT)]
    others = [directory / f"20260101-000000-7-{name}.log" for name in ("bootstrap", "x-metrics")]
    for path in (*earlier, *others):
        path.touch()
    with run_log("demo", "metrics") as log:
        pass
    assert {*directory.iterdir()} == {*earlier[1:], *others, log}
