"""Documents say what is there: links lead somewhere, the README's inventory loads, its commands
exist, and nothing speaks of one machine or one registry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from clusterctl.inventory.load import load

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md")])
FORBIDDEN = re.compile(r"(?<![\w/])/work/|pypi\.org|deb\.debian\.org|registry\.npmjs|/\.pyenv/")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs/pictures").iterdir()), ids=lambda path: path.name
)
def test_pictures_are_shown_and_load_nothing(picture: Path) -> None:
    assert any(picture.name in document.read_text() for document in DOCUMENTS)
    assert not re.search(rb"""(href=|src=|url\()["']?http""", picture.read_bytes())


def test_the_readmes_inventory_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "inventory.yaml"
    file.write_text(block)
    assert [host.name for host in load(file).hosts] == ["gpu1", "gpu2"]


def test_the_readmes_scripts_exist_and_run() -> None:
    scripts = set(re.findall(r"^(scripts/\S+\.sh)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"scripts/demo.sh", "scripts/test.sh"} <= scripts
    for script in scripts:
        subprocess.run(["bash", "-n", ROOT / script], check=True)
        assert (ROOT / script).stat().st_mode & 0o111


def test_nothing_speaks_of_one_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    own = Path(__file__).name
    for name in filter(None, listed):
        path = ROOT / name
        if path.name == own or not path.is_file() or "captures" in path.parts:
            continue
        found = FORBIDDEN.search(path.read_text(errors="ignore"))
        assert found is None, f"{name}: {found and found.group()}"


def test_where_do_i_names_files_that_exist() -> None:
    section = (
        (ROOT / "CONTRIBUTING.md").read_text().split("### Where do I ...")[1].split("\n## ")[0]
    )
    rows = [row for row in section.splitlines() if row.startswith("| ")][2:]
    assert len(rows) >= 10
    for row in rows:
        paths = re.findall(r"`([\w./-]+)`", row)
        assert paths, row
        for path in paths:
            assert (ROOT / path).exists(), path


def test_decisions_are_numbered_once_each() -> None:
    titles = {
        int(page.name[:4]): page.read_text().partition("\n")[0]
        for page in sorted((ROOT / "docs/decisions").glob("*.md"))
    }
    assert len(titles) == len([*(ROOT / "docs/decisions").glob("*.md")])
    assert [*titles] == [*range(1, len(titles) + 1)]
    assert [n for n, title in titles.items() if not title.startswith(f"# {n}. ")] == []
