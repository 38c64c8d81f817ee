"""One log file per run with every event and remote command, for analysing failures."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterctl.reporting.escaping import escaped

# Log files kept per cluster and command, so that one that a timer starts removes no others; older
# ones are removed when a run ends
KEPT = 50


def state_directory() -> Path:
    """Return `$XDG_STATE_HOME/clusterctl`, by default under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "clusterctl"


def private(directory: Path) -> Path:
    """Create a directory that only this user may enter, or make it so, and return it. Raises
    OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


@contextmanager
def run_log(cluster: str, command: str) -> Iterator[Path | None]:
    """Write all messages of the `clusterctl` loggers to a new file during the block; yield its
    path.

    Yields None if no file can be written, which must not stop the run.
    """
    logger = logging.getLogger("clusterctl")
    logger.setLevel(logging.DEBUG)
    path: Path | None = None
    # Without a handler, warnings would go to stderr.
    handler: logging.Handler = logging.NullHandler()
    with suppress(OSError, RuntimeError):  # RuntimeError: the home directory is unknown
        private(state_directory())
        directory = private(state_directory() / "logs" / cluster)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{command}.log"
        handler = _LogFile(directory / name, encoding="utf-8")
        handler.setFormatter(_Escaped("%(asctime)s %(name)s %(message)s"))
        path = directory / name
    logger.addHandler(handler)
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        handler.close()
        kept = sorted(path.parent.glob(f"*-{command}.log")) if path else []
        # The glob finds logs of `image-push` for `push`, too.
        own = [each for each in kept if each.name.split("-", 3)[3:] == [f"{command}.log"]]
        for old in own[:-KEPT]:
            with suppress(OSError):
                old.unlink()


class _Escaped(logging.Formatter):
    """Formats records for a file that will be shown on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class _LogFile(logging.FileHandler):
    """A log file whose write errors (a full disk) do not stop the run; they are reported once."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            sys.stderr.write(f"note: the log stopped: {error.strerror}\n")

    def close(self) -> None:
        with suppress(OSError):  # closing tries to write the rest once more
            super().close()
