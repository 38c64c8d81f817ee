"""One `lab up` or `lab down` at a time on a machine."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl.errors import LockHeld


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock for the body; LockHeld when another process has it. The kernel lets
    go of it when its holder ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LockHeld("another clusterctl is changing this lab", hint="wait for it") from error
        yield
