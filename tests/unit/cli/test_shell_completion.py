"""What a shell offers for the word being typed, by the protocol that bash uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TWO = str(ROOT / "inventory" / "two-hosts.yaml")


def offered(*words: str, state: Path) -> list[str]:
    """`words` without the program; the last one is being typed."""
    environment = {
        "_CLUSTERCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("clusterctl", *words)),
        "COMP_CWORD": str(len(words)),
        "XDG_STATE_HOME": str(state),
    }
    ran = subprocess.run(
        [Path(sys.executable).with_name("clusterctl")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        (("-i", TWO, "ssh", ""), ["gpu1", "gpu2"]),
        (("ssh", "-i", TWO, "gpu2"), ["gpu2"]),
        (("-i", "/nowhere", "exec", "-i", TWO, "--limit", "gpu1,"), ["gpu1,gpu2"]),
        (("logs", "-i", TWO, "--host", "g"), ["gpu1", "gpu2"]),
        (("model", "pull", "-i", TWO, "--on", ""), ["gpu1", "gpu2"]),
        (("ssh", ""), []),
        (("-i", "/nowhere", "ssh", ""), []),
        (("-i", __file__, "ssh", ""), []),
    ],
)
def test_hosts_of_the_inventory_meant(
    words: tuple[str, ...], hosts: list[str], tmp_path: Path
) -> None:
    assert offered(*words, state=tmp_path) == hosts


@pytest.mark.parametrize("command", [("serve",), ("fit",), ("model", "pull")])
def test_models_of_the_catalogue(command: tuple[str, ...], tmp_path: Path) -> None:
    assert offered(*command, "qwen3-8", state=tmp_path) == ["qwen3-8b", "qwen3-8b-fp8"]


def test_commands(tmp_path: Path) -> None:
    assert offered("boot", state=tmp_path) == ["bootstrap"]


@pytest.mark.parametrize(
    ("shell", "written"),
    [
        ("bash", "complete -o default -F"),
        ("zsh", "#compdef clusterctl"),
        ("fish", "complete --command clusterctl"),
    ],
)
def test_the_lines_to_paste_are_for_their_shell(shell: str, written: str, tmp_path: Path) -> None:
    assert (
        f"_CLUSTERCTL_COMPLETE=source_{shell} clusterctl" in (ROOT / "docs/install.md").read_text()
    )
    # Whichever shell runs it: `--show-completion` prints for the one that it finds around itself.
    ran = subprocess.run(
        [Path(sys.executable).with_name("clusterctl")],
        env={
            **os.environ,
            "_CLUSTERCTL_COMPLETE": f"source_{shell}",
            "XDG_STATE_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert written in ran.stdout
