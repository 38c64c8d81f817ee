"""Sources of a host's container engine, and how to install it from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed
from clusterctl.inventory.model import Packages
from clusterctl.packages.bundle import Bundle, fitting
from clusterctl.packages.repository import Repository, docker
from clusterctl.packages.target import (
    CLIENT_OF_DISTRIBUTION,
    ENGINE_OF_DISTRIBUTION,
    ENGINE_OF_DOCKER,
)
from clusterctl.steps.apt import Apt
from clusterctl.steps.dnf import Dnf
from clusterctl.steps.installed import record_installed
from clusterctl.steps.package_files import manager_of
from clusterctl.steps.package_manager import PackageManager, target
from clusterctl.steps.package_source import ensure_source
from clusterctl.steps.static_engine import StaticEngine

DISTRIBUTIONS = ENGINE_OF_DISTRIBUTION[0]


class EngineSource(Protocol):
    @property
    def name(self) -> str:
        """The engine and its source, shown in the plan."""

    def install(self, view: HostView) -> None:
        """Install the engine. Raises StepFailed."""


class PackagedEngine:
    """An engine installed by a package manager. `manager` returns one with the right sources."""

    def __init__(
        self, name: str, manager: Callable[[HostView], PackageManager], candidates: Sequence[str]
    ) -> None:
        self.name = name
        self._manager = manager
        self._candidates = tuple(candidates)

    def install(self, view: HostView) -> None:
        manager = self._manager(view)
        manager.prepare()
        wanted = self._wanted(view, manager)
        record_installed(view, manager.would_add(wanted))
        view.say(f"installing {' '.join(wanted)}")
        manager.install(wanted)

    def _wanted(self, view: HostView, manager: PackageManager) -> list[str]:
        if len(self._candidates) == 1 and DISTRIBUTIONS in self._candidates:
            return _of_distribution(manager)  # if it is missing, apt's own error is the best
        for candidate in self._candidates:
            if manager.offers(candidate):
                return (
                    _of_distribution(manager)
                    if candidate == DISTRIBUTIONS
                    else list(ENGINE_OF_DOCKER)
                )
        raise CommandFailed(
            f"{self.name} has none of {', '.join(self._candidates)}",
            host=view.host.name,
            hint="what a bundle holds: clusterctl bundle packages --help",
        )


def _of_distribution(manager: PackageManager) -> list[str]:
    client = [CLIENT_OF_DISTRIBUTION] if manager.offers(CLIENT_OF_DISTRIBUTION) else []
    return [DISTRIBUTIONS, *client]


def engine_source(
    view: HostView,
    packages: Packages,
    bundles: Sequence[Bundle],
    pause: Callable[[float], None] = time.sleep,
) -> EngineSource:
    """Return the bundle if there is one; else Docker's repository, if the inventory or the system
    requires it; else the distribution's own package.

    Raises RequirementsNotMet if no bundle is for this host's system.
    """
    system = target(view)
    if bundles:
        bundle = fitting(bundles, system, view.facts.os.architecture, host=view.host.name)
        return _brought(bundle, pause)
    if packages.docker is None and system.family == "apt":
        return PackagedEngine(DISTRIBUTIONS, lambda view: Apt(view, pause), [DISTRIBUTIONS])
    given = packages.docker
    repository = docker(system, given.url if given else None, given.key if given else None)
    return _from(repository, pause)


def _brought(bundle: Bundle, pause: Callable[[float], None]) -> EngineSource:
    if archive := bundle.static_engine:
        return StaticEngine(bundle, archive)
    candidates = [ENGINE_OF_DOCKER[0], DISTRIBUTIONS]
    return PackagedEngine(
        f"the engine from {bundle.path.name}",
        lambda view: manager_of(view, bundle, wanted=lambda f: "nvidia" not in f, pause=pause),
        candidates,
    )


def _from(repository: Repository, pause: Callable[[float], None]) -> EngineSource:
    def manager(view: HostView) -> PackageManager:
        ensure_source(view, repository)
        return Apt(view, pause) if target(view).family == "apt" else Dnf(view, pause)

    return PackagedEngine(f"docker-ce from {repository.url}", manager, [ENGINE_OF_DOCKER[0]])
