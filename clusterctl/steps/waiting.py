"""Running a package manager's commands, and waiting while another one holds its lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.transport.base import CommandResult


def waiting_for_lock(
    view: HostView,
    argv: Sequence[str],
    *,
    locked: Callable[[CommandResult], bool],
    whose: str,
    timeout: float,
    pause: Callable[[float], None],
) -> CommandResult:
    """The command's result; the last one that was `locked`, once deadlines.PACKAGE_LOCK is over.

    `whose`: the programs that hold the lock, for the word on the screen.
    """
    deadline = time.monotonic() + deadlines.PACKAGE_LOCK
    while True:
        result = view.transport.run(argv, sudo=True, timeout=timeout)
        if result.ok or not locked(result) or time.monotonic() > deadline:
            return result
        view.say(f"waiting for another {whose} to end")
        pause(3.0)
