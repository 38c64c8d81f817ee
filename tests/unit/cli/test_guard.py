"""Failures become words and an exit code; the words of bugs go to a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from clusterctl.cli.guard import guarded
from clusterctl.errors import LockHeld


@guarded
def _command(error: BaseException, *, as_json: bool = False) -> None:
    _ = as_json
    raise error


def _ended(error: BaseException, **options: bool) -> int:
    with pytest.raises(typer.Exit) as ended:
        _command(error, **options)
    return ended.value.exit_code


def test_an_error_is_cause_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert _ended(LockHeld("taken", host="gpu1", hint="wait")) == 7
    shown = capsys.readouterr()
    assert shown.err.startswith("error: gpu1: taken\n  fix: wait\n")
    assert shown.out == ""


def test_ctrl_c_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert _ended(KeyboardInterrupt()) == 130
    assert "error: interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("writable", [True, False])
def test_a_bug_is_kept_in_a_file_wherever_one_can_be_written(
    writable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path) if writable else "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert _ended(ZeroDivisionError("x")) == 1
    shown = capsys.readouterr().err
    assert "a bug in clusterctl: ZeroDivisionError: x" in shown
    assert "Traceback" not in shown
    (kept,) = tmp_path.rglob("*.log")
    assert f"please report it with {kept}" in shown
    assert "Traceback" in kept.read_text()


def test_a_bug_for_machines_is_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert _ended(ZeroDivisionError("x"), as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 1
