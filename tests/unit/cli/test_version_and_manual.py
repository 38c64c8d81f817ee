"""The version with its commit, without git; the manual page, which is made from the help."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.cli.commit import RECORD, commit
from scripts import man_page
from tests.unit.cli.conftest import Run

ROOT = Path(__file__).parents[3]
HASH = "0123456789abcdef0123456789abcdef01234567"


def clone(where: Path, *, packed: bool = False, branch: bool = True) -> Path:
    """A clone as git writes it; its package."""
    git = where / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (where / "clusterctl").mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n" if branch else f"{HASH}\n")
    if packed:
        (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{HASH} refs/heads/main\n")
    elif branch:
        (git / "refs/heads/main").write_text(f"{HASH}\n")
    return where / "clusterctl"


@pytest.mark.parametrize(("packed", "branch"), [(False, True), (True, True), (False, False)])
def test_a_clone_tells_its_commit(tmp_path: Path, packed: bool, branch: bool) -> None:
    assert commit(clone(tmp_path, packed=packed, branch=branch)) == HASH[:10]


def test_a_worktree_tells_its_own(tmp_path: Path) -> None:
    clone(tmp_path / "main")
    own = tmp_path / "main/.git/worktrees/other"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / "other/clusterctl").mkdir(parents=True)
    (tmp_path / "other/.git").write_text(f"gitdir: {own}\n")
    assert commit(tmp_path / "other/clusterctl") == HASH[:10]


def test_a_wheel_has_a_record_and_what_has_neither_tells_none(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""
    (tmp_path / RECORD).write_text(f"{HASH}\n")
    assert commit(tmp_path) == HASH[:10]
    (tmp_path / "broken/.git").mkdir(parents=True)
    assert commit(tmp_path / "broken/clusterctl") == ""


def test_this_clone_agrees_with_git(clusterctl: Run) -> None:
    asked = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    head = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert clusterctl("--version").stdout.endswith(f" ({head[:10]})\n")


def test_the_manual_page_is_up_to_date() -> None:
    kept = (ROOT / "docs/clusterctl.1").read_text()
    assert kept == man_page.page(), "run: python -m scripts.man_page > docs/clusterctl.1"
    assert ".SS clusterctl serve [OPTIONS] [MODEL]" in kept
    assert not [line for line in kept.splitlines() if line.startswith("'")]
