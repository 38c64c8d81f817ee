"""The benchmark of transfers on a machine that cannot run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_it_names_the_programs_that_it_needs() -> None:
    argv = [sys.executable, "-m", "tests.bench"]
    ran = subprocess.run(argv, cwd=ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("tests.bench needs ")
    for program in ("dockerd", "docker", "tc"):
        assert program in line
    assert line.endswith("scripts/setup.sh --tests installs all programs")
