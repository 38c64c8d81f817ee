"""One `lab up` or `lab down` at a time on a machine."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from clusterctl import deadlines
from clusterctl.errors import LockHeld


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock for the body; LockHeld when another process keeps it. The kernel lets
    go of it when its holder ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        deadline = time.monotonic() + deadlines.LAB_LOCK
        while not _taken(file):
            if time.monotonic() > deadline:
                raise LockHeld("another clusterctl is changing this lab", hint="wait for it")
            time.sleep(0.05)
        yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
