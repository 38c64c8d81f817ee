"""Consent: asked for where something serves, never of a program, and remembered only then."""

from __future__ import annotations

import io
import json

import pytest

from clusterctl.cli.session import agreement, show_plan
from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change
from clusterctl.errors import Unreachable, UsageError
from clusterctl.reporting.console import Progress

RESTART = PlannedChange("Ray head", "gpu1", "node container", Change("replace it", disruptive=True))


def agree_to(plan: Plan, *, yes: bool, as_json: bool) -> list[str]:
    """What is done once the plan is agreed to."""
    done: list[str] = []
    with Progress(io.StringIO(), quiet=True) as progress:
        agreement(progress, yes=yes, as_json=as_json, agreed=lambda: done.append("agreed"))(plan)
    return done


@pytest.mark.parametrize("as_json", [True, False])
def test_what_stops_a_service_needs_a_yes(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO("yes\n")
    monkeypatch.setattr(terminal, "isatty", lambda: as_json)
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(UsageError) as raised:
        agree_to(Plan((RESTART,)), yes=False, as_json=as_json)
    assert "--yes" in str(raised.value.hint)
    assert capsys.readouterr().out == ""
    assert terminal.tell() == 0, "a program was asked"


def test_with_yes_or_nothing_disruptive_it_goes_on() -> None:
    assert agree_to(Plan((RESTART,)), yes=True, as_json=True) == ["agreed"]
    assert agree_to(Plan(()), yes=False, as_json=False) == ["agreed"]


def test_a_plan_and_what_kept_hosts_out_of_it_are_one_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = show_plan(
        Plan((RESTART,)), as_json=True, errors=[Unreachable("no answer", host="gpu2")]
    )
    assert ended.exit_code == 4
    told = json.loads(capsys.readouterr().out)
    assert [change["host"] for change in told["changes"]] == ["gpu1"]
    assert [problem["host"] for problem in told["error"]["problems"]] == ["gpu2"]


@pytest.mark.parametrize(("plan", "status"), [(Plan((RESTART,)), 10), (Plan(()), 0)])
def test_a_dry_run_shows_the_plan_or_says_that_nothing_moves(
    plan: Plan, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_plan(plan, as_json=False, nothing="Nothing moves.").exit_code == status
    said = capsys.readouterr().out
    assert ("replace it" in said) == bool(status)
    assert ("Nothing moves." in said) == (not status)


def test_the_plan_of_a_run_is_on_stderr_and_not_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agree_to(Plan((RESTART,)), yes=True, as_json=False)
    said = capsys.readouterr()
    assert "gpu1  !  replace it" in said.err
    assert said.out == ""
    agree_to(Plan((RESTART,)), yes=True, as_json=True)
    assert capsys.readouterr() == ("", "")
