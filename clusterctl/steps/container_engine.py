"""Install Docker on a host without it: Debian, Ubuntu, RHEL and their derivatives.

A running engine is never upgraded, restarted or configured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import CommandFailed, RequirementsNotMet
from clusterctl.inventory.model import Packages
from clusterctl.packages.bundle import Bundle
from clusterctl.steps.engine_source import EngineSource, engine_source
from clusterctl.steps.root_script import root_script

LOOK = """\
client=$(command -v docker) || client=
echo "client=$client"
if [ -n "$client" ]; then
  echo "resolved=$(readlink -f "$client")"
  if answer=$(timeout 20 docker version --format '{{.Server.Version}}' 2>&1)
  then echo "server=$answer"
  else echo "status=$?"; echo "refusal=$(echo "$answer" | tail -n 1)"
  fi
  case $(timeout 20 docker --version 2>/dev/null) in *podman*) echo "podman=yes";; esac
fi
command -v apt-get >/dev/null || command -v dnf >/dev/null && echo "packages=yes"
[ -d /run/systemd/system ] && echo "systemd=yes"
systemctl cat docker.service >/dev/null 2>&1 && echo "unit=yes"
exit 0
"""

START = "systemctl reset-failed docker.service docker.socket; systemctl enable --now docker.service"

WHY_NOT = "journalctl -u docker.service -n 20 --no-pager"


@dataclass(frozen=True)
class EngineFound:
    """The parsed output of `LOOK`."""

    client: str
    server: str  # The engine's version; empty if it does not answer
    hung: bool
    refusal: str
    snap: bool
    podman: bool
    packages: bool  # A package manager is available
    systemd: bool
    unit: bool


def found_in(text: str) -> EngineFound:
    told = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    return EngineFound(
        client=told.get("client", ""),
        server=told.get("server", ""),
        hung=told.get("status") == "124",
        refusal=told.get("refusal", ""),
        snap=told.get("client", "").startswith("/snap/") or "/snap" in told.get("resolved", ""),
        podman="podman" in told,
        packages="packages" in told,
        systemd="systemd" in told,
        unit="unit" in told,
    )


class ContainerEngine:
    """Step: a Docker engine is installed and answers."""

    title = "container engine"

    def __init__(
        self,
        packages: Packages | None = None,
        bundles: Sequence[Bundle] = (),
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`bundles`: package bundles to install from, instead of the host's sources."""
        self._packages = packages or Packages()
        self._bundles = tuple(bundles)
        self._pause = pause

    def check(self, view: HostView) -> Change | None:
        found = _look(view)
        _refuse(view, found, brought=bool(self._bundles))
        if found.server:
            return None
        if found.client and found.unit:
            return Change("start docker.service", before="stopped", after="running")
        name = self._source(view).name
        return Change(f"install {name}", before="no container engine", after=name)

    def apply(self, view: HostView, change: Change) -> None:
        del change
        found = _look(view)
        if not (found.client and found.unit):
            self._source(view).install(view)
        if not _look(view).server:
            view.say("starting docker.service")
            # Ignore the status: what counts is whether the engine answers.
            view.transport.run(["sh", "-c", START], sudo=True, timeout=deadlines.SYSTEMD)
            await_answer(view, self._pause)

    def _source(self, view: HostView) -> EngineSource:
        return engine_source(view, self._packages, self._bundles, self._pause)


def await_answer(view: HostView, pause: Callable[[float], None]) -> None:
    """Wait until the engine answers. Raises CommandFailed with the last lines of its journal."""
    deadline = time.monotonic() + deadlines.ENGINE_START
    while not (found := _look(view)).server:
        if time.monotonic() > deadline:
            journal = view.transport.run(["sh", "-c", WHY_NOT], sudo=True)
            raise CommandFailed(
                f"docker.service was started, but the engine does not answer: {found.refusal}",
                host=view.host.name,
                hint="systemctl status docker; journalctl -u docker",
                detail=journal.stdout.strip() or None,
            )
        pause(1.0)


def _look(view: HostView) -> EngineFound:
    return found_in(
        root_script(
            view, LOOK, doing="looking for a container engine", timeout=deadlines.ENGINE_LOOK
        )
    )


def _refuse(view: HostView, found: EngineFound, *, brought: bool) -> None:
    """Raise RequirementsNotMet for a host that bootstrap cannot fix."""
    problem: tuple[str, str] | None = None
    if found.snap:
        problem = (
            "Docker is a snap, which cannot mount /etc, /opt and most data directories",
            "snap remove docker; then run clusterctl again",
        )
    elif found.podman:
        problem = (
            "`docker` is Podman there",
            "remove podman-docker there (apt-get or dnf), then run it again",
        )
    elif found.server:
        return
    elif found.hung:
        problem = "the Docker engine is installed but does not answer", "systemctl restart docker"
    elif view.facts.engine.rootless:
        problem = "Docker runs rootless there", "dockerd-rootless-setuptool.sh uninstall"
    elif not (found.unit or found.packages or brought):
        problem = (
            f"no container engine, and neither apt-get nor dnf to install one "
            f"({view.facts.os.pretty})",
            "bring Docker's static archive: docs/offline.md; or install and start Docker there",
        )
    elif not found.systemd:
        problem = (
            "no running container engine, and no systemd to start one",
            "install Docker and start dockerd there",
        )
    if problem:
        raise RequirementsNotMet(problem[0], host=view.host.name, hint=problem[1])
