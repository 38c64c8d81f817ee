"""Run commands of this machine's package manager."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from clusterctl import deadlines
from clusterctl.errors import StepFailed


def run(argv: Sequence[str], *, timeout: float = deadlines.LOCAL_COMMAND) -> str:
    """Return stdout. Raises StepFailed with the last lines, or after `timeout` seconds."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=timeout,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise StepFailed(f"`{argv[0]}` took longer than {timeout:g} s") from error
    except OSError as error:
        raise StepFailed(f"`{argv[0]}` cannot be run here: {error.strerror}") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        first = next((line for line in lines if line.startswith(("E:", "Error:"))), "")
        raise StepFailed(
            f"`{argv[0]}` ended with {done.returncode}: {first or (lines or [''])[-1]}",
            detail="\n".join(lines[-15:]) or None,
        )
    return done.stdout
