"""What `image push`, `model push` and `model pull` have in common: a plan shown, or carried out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from clusterctl.cli.moving import Flags, Move, Words, move
from clusterctl.cli.session import Session
from clusterctl.engine.events import EventSink
from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change
from clusterctl.transport.credentials import Credentials

PLAN = Plan((PlannedChange("Image", "here", "image", Change("bring it")),))
WORDS = Words[int]("Nothing moves.", lambda sent: f"{sent} sent", lambda sent: {"sent": sent})


@pytest.fixture
def moved(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Move something with these flags: the hosts that it was brought to."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def go(plan: Plan = PLAN, *, dry_run: bool = False, as_json: bool = False) -> list[str]:
        reached: list[str] = []

        def prepare(opened: Session) -> Move[int]:
            def run(
                _credentials: Credentials, *, agree: Callable[[Plan], None], sink: EventSink
            ) -> int:
                del sink
                agree(plan)
                reached.extend(host.name for host in opened.hosts)
                return 7

            return Move(lambda _credentials: plan, run)

        flags = Flags(
            inventory=inventory, limit="here", dry_run=dry_run, yes=False, as_json=as_json
        )
        move("image-push", prepare, WORDS, flags)
        return reached

    return go


def test_what_was_moved_is_told_on_stdout_and_its_plan_on_stderr(
    moved: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert moved() == ["here"]
    said = capsys.readouterr()
    assert said.out == "7 sent\n"
    assert "here  +  bring it" in said.err


def test_programs_read_it_as_json(
    moved: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert moved(as_json=True) == ["here"]
    said = capsys.readouterr()
    assert json.loads(said.out) == {"sent": 7}
    assert said.err == ""


@pytest.mark.parametrize(("plan", "status"), [(PLAN, 10), (Plan(()), 0)])
def test_a_dry_run_shows_the_plan_and_moves_nothing(
    plan: Plan, status: int, moved: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        moved(plan, dry_run=True)
    assert ended.value.exit_code == status
    assert ("bring it" in capsys.readouterr().out) == bool(status)


def test_a_dry_run_in_which_nothing_moves_says_so(
    moved: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        moved(Plan(()), dry_run=True)
    assert capsys.readouterr().out == "Nothing moves.\n"
