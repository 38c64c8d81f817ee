"""Commands that build something: in a control group of their own, so that nothing of a build
goes on after the one who asked for it, and with a log to look into."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clusterctl.errors import StepFailed
from clusterctl.lab import cgroups, nspawn
from clusterctl.lab.local import BUILD_TIMEOUT, run

GROUP = "build"
PAUSES = (5.0, 30.0)
"""Seconds before a download is tried again."""


def run_build(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a build command to its end, or end all of it."""
    end_builds()
    files = cgroups.create(GROUP)
    try:
        run(nspawn.in_groups(files, argv), log=log, env=env, timeout=BUILD_TIMEOUT)
    finally:
        end_builds()


def persistently(build: Callable[[], None]) -> None:
    """What downloads much, three times at most: a server that fails once is no reason to stop."""
    for pause in PAUSES:
        try:
            return build()
        except StepFailed:
            time.sleep(pause)
    return build()


def end_builds() -> None:
    """End what an interrupted run left building."""
    cgroups.kill_all(GROUP)
    cgroups.remove(GROUP)


def run_in_tree(
    root: Path,
    argv: Sequence[str],
    *,
    binds: Mapping[Path, str],
    env: Mapping[str, str],
    log: Path,
) -> None:
    """Run a command inside a tree, without a network, `binds` being readable there."""
    command = [
        "systemd-nspawn",
        "--quiet",
        f"--directory={root}",
        f"--machine={GROUP}",
        "--register=no",
        "--keep-unit",
        "--private-network",
        "--as-pid2",
        "--pipe",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        *(f"--bind-ro={source}:{target}" for source, target in binds.items()),
        *(f"--setenv={name}={value}" for name, value in env.items()),
        *argv,
    ]
    run_build(command, log=log, env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "0"}
              if not cgroups.unified_only() else None)  # fmt: skip
