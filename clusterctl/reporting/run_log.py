"""One file per run with every event and every remote command, for when something failed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

KEPT = 50
"""Log files kept per cluster; older ones are removed when a new one starts."""


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/clusterctl`, by default under ~/.local/state."""
    base = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "clusterctl"


@contextmanager
def run_log(cluster: str, command: str) -> Iterator[Path]:
    """Write all that the `clusterctl` loggers say to a new file, for the time of the block."""
    directory = state_directory() / "logs" / cluster
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{command}.log"
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger = logging.getLogger("clusterctl")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        handler.close()
        _prune(directory)


def _prune(directory: Path) -> None:
    for old in sorted(directory.glob("*.log"))[:-KEPT]:
        old.unlink(missing_ok=True)
