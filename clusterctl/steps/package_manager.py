"""What steps ask of a host's package manager, apt-get or dnf."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.packages.target import PackageSystem, target_of
from clusterctl.transport.base import CommandResult


class PackageManager(Protocol):
    """All calls raise CommandFailed with the manager's own first error and a fix."""

    def prepare(self) -> None:
        """Finish what an earlier run left half done, and read the package lists."""

    def offers(self, package: str) -> bool:
        """Whether a source has it; `package` may be pinned."""

    def pinned(self, package: str, version: str) -> str:
        """Return how the manager is asked for exactly this version."""

    def would_add(self, packages: Sequence[str]) -> list[str]:
        """Return the names of the packages that installing would add, dependencies included."""

    def would_remove(self, packages: Sequence[str]) -> list[str]:
        """Return the names of the packages that removing would remove, dependents included."""

    def install(self, packages: Sequence[str]) -> None: ...

    def purge(self, packages: Sequence[str]) -> None: ...


def target(view: HostView) -> PackageSystem:
    """Return the host's system. One that does not identify itself is assumed to be Debian."""
    system = view.facts.os
    found = target_of(system.id, system.like, system.version, system.codename)
    return found or PackageSystem("debian", system.version, system.codename)


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
