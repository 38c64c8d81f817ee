"""docs/behind-a-bastion.md and docs/from-a-laptop.md, every block of them, by someone who has a
machine of their own with nothing on it, bare hosts, and the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clusterctl.lab.image import image_tag
from clusterctl.lab.mirror import MIRROR_PIP
from clusterctl.lab.paths import LabPaths
from tests.lab import sites
from tests.lab.walk import Block, Terminal, blocks

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

ROOT = Path(__file__).parents[2]

# The hub is out of reach: its client brings the lab's own model instead, of the same layout.
HF = '#!/bin/sh\nexec cp -r {model} "$4"\n'


def walk(
    page: str,
    terminals: Mapping[str, Terminal],
    lab: Mapping[str, str],
    then: Mapping[str, Callable[[], object]],
) -> list[str]:
    """Run the page's blocks; what each printed. `lab`: what is typed there instead of a beginning
    of the page's own; `then`: what happens after a block that has this text."""
    background: list[subprocess.Popen[bytes]] = []
    printed: list[str] = []
    try:
        for block in blocks(ROOT / "docs" / page):
            text = block.text
            for typed, instead in lab.items():
                text = text.replace(typed, instead)
            here = Block(block.place, block.words, text, block.prints)
            sys.stdout.write(f"$ {text}")
            if "background" in block.words:
                started = terminals[block.place].start(here)
                background.append(started)
                assert started.stdout is not None
                sys.stdout.write(started.stdout.readline().decode())
                continue
            printed.append(terminals[block.place].run(here))
            sys.stdout.write(printed[-1])
            for part, act in then.items():
                if part in block.text:
                    act()
    finally:
        for process in background:
            process.kill()
            process.communicate()
    return printed


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What somebody has who cloned the project."""
    place = tmp_path / "clone"
    subprocess.run(("git", "clone", "-q", "--shared", ROOT, place), check=True)
    return place


def on_this_machine(directory: Path, programs: Path) -> tuple[str, ...]:
    """The shell of the machine with internet access."""
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return ("env", "-C", str(directory), f"PATH={path}", f"HOME={programs}", "bash", "-c")


def test_behind_a_bastion_every_block_runs_to_an_answer(
    lab: LabPaths, tmp_path: Path, clone: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    with sites.behind_a_bastion(lab, tmp_path) as (site, proxy):
        hf = programs / "hf"
        hf.write_text(HF.format(model=lab.host("gpu1") / "root/data/models/tiny"))
        hf.chmod(0o755)
        there = sites.login(lab, sites.WORKSTATION, "ann")
        printed = walk(
            "behind-a-bastion.md",
            {
                "connected": Terminal(on_this_machine(clone, programs)),
                "workstation": Terminal(there),
            },
            {"clusterctl init ": "clusterctl init --accelerator cpu "},
            {"hf download": lambda: site.give(sites.WORKSTATION, "ann", clone / "site")},
        )
        assert proxy.asked_for(sites.MIRROR)
        assert any(answered(text) for text in printed)


def test_from_a_laptop_every_block_runs_to_an_answer(
    lab: LabPaths, tmp_path: Path, clone: Path
) -> None:
    wheels = tmp_path / "wheels"
    fetch = (sys.executable, "-m", "pip", "download", "-q", "-d", wheels)
    subprocess.run((*fetch, "-r", ROOT / "requirements/run.txt"), check=True)
    subprocess.run((*fetch, "setuptools>=77"), check=True)
    with sites.at_home(lab, tmp_path) as site:
        site.give(sites.LAPTOP, "ann", clone, wheels)
        there = sites.login(lab, sites.LAPTOP, "ann", "-tt")
        laptop = Terminal(
            there,
            {"continue connecting (yes/no": "yes", "assword": sites.PASSWORD, "[y/N]": "y"},
        )
        laptop.run(Block("laptop", (), "cd ~/clone", ()))
        # What the internet would give the hosts: the image, and what is added to it
        outside = f"image_archive: ../image.tar\npackages: {{pip_index: {MIRROR_PIP}}}\n"
        add = Block("laptop", (), f"cat >>inventory.yaml <<'END'\n{outside}END\n", ())
        printed = walk(
            "from-a-laptop.md",
            {"laptop": laptop},
            {
                "clusterctl init ": f"clusterctl init --accelerator cpu --image {image_tag()} ",
                "serve qwen3-8b --replicas 2 --max-model-len 16384": "serve qwen3-8b --replicas 2",
            },
            {"clusterctl init": lambda: laptop.run(add)},
        )
        assert any(answered(text) for text in printed)


def answered(text: str) -> bool:
    """Whether the last line of the output is an answer of a model."""
    try:
        return bool(json.loads(text.strip().rsplit("\n", 1)[-1])["usage"]["completion_tokens"])
    except (ValueError, LookupError, TypeError):
        return False
