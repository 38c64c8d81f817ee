"""The interface that steps use for a host's package manager, apt-get or dnf."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.packages.target import PackageSystem, target_of
from clusterctl.transport.base import CommandResult


class PackageManager(Protocol):
    """A host's package manager. All methods raise CommandFailed with its first error and a fix."""

    def prepare(self) -> None:
        """Finish an interrupted earlier installation, and refresh the package lists."""

    def offers(self, package: str) -> bool:
        """Whether a source has `package`, which may be pinned to a version."""

    def pinned(self, package: str, version: str) -> str:
        """Return the argument that selects exactly this version."""

    def would_add(self, packages: Sequence[str]) -> list[str]:
        """Return the names of the packages that installing would add, dependencies included."""

    def would_remove(self, packages: Sequence[str]) -> list[str]:
        """Return the names of the packages that removing would remove, dependents included."""

    def install(self, packages: Sequence[str]) -> None: ...

    def purge(self, packages: Sequence[str]) -> None: ...


def target(view: HostView) -> PackageSystem:
    """Return the host's system; Debian if it could not be identified."""
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
    """Run the command until it is not `locked`, at most deadlines.PACKAGE_LOCK; return its result.

    `whose`: the programs that may hold the lock, for the progress message.
    """
    deadline = time.monotonic() + deadlines.PACKAGE_LOCK
    while True:
        result = view.transport.run(argv, sudo=True, timeout=timeout)
        if result.ok or not locked(result) or time.monotonic() > deadline:
            return result
        view.say(f"waiting for another {whose} to end")
        pause(3.0)
