"""One file per run with every event and every remote command, for when something failed."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

KEPT = 50  # Log files kept per cluster; older ones are removed when a new one starts


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/clusterctl`, by default under ~/.local/state."""
    base = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "clusterctl"


@contextmanager
def run_log(cluster: str, command: str) -> Iterator[Path | None]:
    """Write all that the `clusterctl` loggers say to a new file, for the time of the block.

    None when no file can be written there: a log is no reason not to do the work.
    """
    logger = logging.getLogger("clusterctl")
    logger.setLevel(logging.DEBUG)
    handler = _new_file(cluster, command)
    logger.addHandler(handler)
    path = Path(handler.baseFilename) if isinstance(handler, logging.FileHandler) else None
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        handler.close()
        if path:
            _prune(path.parent)


class _LogFile(logging.FileHandler):
    """A disk that is full, now or later, stops no run; it is said once."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            sys.stderr.write(f"note: the log is not kept on: {error.strerror}\n")

    def close(self) -> None:
        with suppress(OSError):  # what could not be written is tried once more
            super().close()


def _new_file(cluster: str, command: str) -> logging.Handler:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{command}.log"
    try:
        directory = state_directory() / "logs" / cluster
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = _LogFile(directory / name, encoding="utf-8")
    except (OSError, RuntimeError):  # RuntimeError: nobody knows where home is
        return logging.NullHandler()  # with no handler at all, warnings would go to stderr
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    return handler


def _prune(directory: Path) -> None:
    for old in sorted(directory.glob("*.log"))[:-KEPT]:
        with suppress(OSError):
            old.unlink()
