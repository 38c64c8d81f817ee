"""What steps ask of a host's package manager, apt-get or dnf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from clusterctl.engine.step import HostView
from clusterctl.packages.target import Target, target_of


class PackageManager(Protocol):
    """All calls raise CommandFailed with the manager's own first error and a fix."""

    def prepare(self) -> None:
        """Finish what an earlier run left half done, and read the package lists."""

    def offers(self, package: str) -> bool:
        """Whether a source has it; `package` may be pinned."""

    def pinned(self, package: str, version: str) -> str:
        """How to ask for that very version."""

    def would_add(self, packages: Sequence[str]) -> list[str]:
        """Names of the packages that installing would add, dependencies included."""

    def would_remove(self, packages: Sequence[str]) -> list[str]:
        """Names of the packages that removing would take away, those that need them included."""

    def install(self, packages: Sequence[str]) -> None: ...

    def purge(self, packages: Sequence[str]) -> None: ...


def target(view: HostView) -> Target:
    """The host's system. One that does not say what it is is taken for a Debian."""
    system = view.facts.os
    found = target_of(system.id, system.like, system.version, system.codename)
    return found or Target("debian", system.version, system.codename)
