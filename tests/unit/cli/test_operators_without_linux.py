"""The operator's machine may be a Mac: its code runs where Python lacks what only Linux has, and no
program at all is on the PATH. What runs on hosts and in the lab needs Linux, and is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

ROOT = Path(__file__).parents[3]
BARE = f"{ROOT / 'tests/fakes/bare_python'}{os.pathsep}{ROOT}"
IMPORTED = """
import importlib, os, pkgutil, select
import clusterctl
assert not hasattr(os, "sched_getaffinity") and not hasattr(select, "epoll")
for each in pkgutil.walk_packages(clusterctl.__path__, "clusterctl."):
    if not each.name.startswith(("clusterctl.node.", "clusterctl.lab.", "clusterctl.__main__")):
        importlib.import_module(each.name)
"""


def test_every_module_of_the_operators_side_can_be_imported() -> None:
    environment = {**os.environ, "PYTHONPATH": BARE}
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (("--version",), 0, "clusterctl "),
        (("fit", "qwen3-8b", "--gpus", "2xRTX4090"), 0, "KV cache"),
        (("model", "ls"), 0, "qwen3-8b"),
        (("image", "cache"), 0, "no image layers"),
        (("diagnose", "vllm.log"), 8, "memory"),
        (("check", "-i", "inventory.yaml"), 4, "refused the connection"),
        (("status", "-i", "inventory.yaml"), 8, "gone"),
        (("bootstrap", "inventory.yaml", "--dry-run"), 4, "refused the connection"),
        (("image", "bundle", "busybox:1", "-o", "b.tar"), None, "fix: "),
        (("packages", "bundle", "--for", "debian12", "-o", "p"), None, "fix: "),
        (("lab", "up"), None, "fix: "),
    ],
)
def test_commands_run_or_say_what_they_need(
    clusterctl: Run, tmp_path: Path, closed_port: int, words: tuple[str, ...],
    status: int | None, shown: str,
) -> None:  # fmt: skip
    (tmp_path / "vllm.log").write_text("torch.cuda.OutOfMemoryError: CUDA out of memory.\n")
    (tmp_path / "inventory.yaml").write_text(
        f"cluster: away\nimage: vllm/vllm-openai:v0.33.0\nssh: {{port: {closed_port}}}\n"
        "hosts: {gone: {address: 127.0.0.1, role: head, gpus: 1}}\n"
    )
    nothing = tmp_path / "bin"
    nothing.mkdir()
    ran = clusterctl(*words, PYTHONPATH=BARE, PATH=str(nothing))
    assert shown in ran.stdout + ran.stderr, (ran.returncode, ran.stdout, ran.stderr)
    assert "bug in clusterctl" not in ran.stderr
    assert status is None or ran.returncode == status
