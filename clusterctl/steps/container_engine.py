"""Docker on a bare Debian or Ubuntu host, from the package sources the host already has.

An engine that runs is never upgraded, restarted or configured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from clusterctl.engine.step import Change, HostView
from clusterctl.errors import CommandFailed, RequirementsNotMet, StepFailed
from clusterctl.steps.apt import Apt
from clusterctl.steps.root_script import root_script

PACKAGE = "docker.io"
CLIENT_PACKAGE = "docker-cli"
"""From Debian 13 on the client is a package of its own, which docker.io only recommends."""

MARKER = "/var/lib/clusterctl/engine-packages"
"""Names of the packages that we added, one a line: what `down --purge` takes away again."""

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
command -v apt-get >/dev/null && echo "apt=yes"
[ -d /run/systemd/system ] && echo "systemd=yes"
systemctl cat docker.service >/dev/null 2>&1 && echo "unit=yes"
exit 0
"""

START = "systemctl reset-failed docker.service docker.socket; systemctl enable --now docker.service"

WHY_NOT = "journalctl -u docker.service -n 20 --no-pager"

REMEMBER = """\
set -e
mkdir -p "${1%/*}"; touch "$1"
sort -u - "$1" >"$1.new"; mv "$1.new" "$1"
"""

ANSWER_LIMIT = 60.0
"""Seconds from the start of the service to the engine's first answer; 15 s were measured for
the installation and start together on a slow host."""


@dataclass(frozen=True)
class Found:
    """What `LOOK` said."""

    client: str
    server: str
    """The engine's version; empty when it does not answer."""
    hung: bool
    refusal: str
    snap: bool
    podman: bool
    apt: bool
    systemd: bool
    unit: bool


def found_in(text: str) -> Found:
    told = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    return Found(
        client=told.get("client", ""),
        server=told.get("server", ""),
        hung=told.get("status") == "124",
        refusal=told.get("refusal", ""),
        snap=told.get("client", "").startswith("/snap/") or "/snap" in told.get("resolved", ""),
        podman="podman" in told,
        apt="apt" in told,
        systemd="systemd" in told,
        unit="unit" in told,
    )


class ContainerEngine:
    """A Docker engine is installed and answers."""

    title = "container engine"

    def __init__(self, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._pause = pause

    def check(self, view: HostView) -> Change | None:
        found = _look(view)
        _refuse(view, found)
        if found.server:
            return None
        if found.client and found.unit:
            return Change("start docker.service", before="stopped", after="running")
        return Change(f"install {PACKAGE}", before="no container engine", after=PACKAGE)

    def apply(self, view: HostView, change: Change) -> None:
        del change
        found = _look(view)
        if not (found.client and found.unit):
            self._install(view)
        if not _look(view).server:
            self._start(view)

    def _install(self, view: HostView) -> None:
        apt = Apt(view, self._pause)
        apt.finish_interrupted()
        apt.update()
        wanted = [PACKAGE, *([CLIENT_PACKAGE] if apt.offers(CLIENT_PACKAGE) else [])]
        # Noted before they are installed, so that an installation cut short can be taken back.
        remember(view, apt.would_add(wanted))
        view.say(f"installing {' '.join(wanted)}")
        apt.install(wanted)

    def _start(self, view: HostView) -> None:
        view.say("starting docker.service")
        # The status is not looked at: whether the engine answers is what counts.
        view.transport.run(["sh", "-c", START], sudo=True, timeout=120)
        deadline = time.monotonic() + ANSWER_LIMIT
        while not (found := _look(view)).server:
            if time.monotonic() > deadline:
                raise _not_started(view, found)
            self._pause(1.0)


def remember(view: HostView, packages: list[str]) -> None:
    """Add names to the marker."""
    text = "".join(f"{name}\n" for name in packages)
    root_script(
        view,
        REMEMBER,
        MARKER,
        stdin=text.encode(),
        doing=f"writing {MARKER}",
    )


def _look(view: HostView) -> Found:
    return found_in(root_script(view, LOOK, doing="looking for a container engine", timeout=90))


def _refuse(view: HostView, found: Found) -> None:
    """Raise for a host that can never be made right from here."""
    problem: tuple[str, str] | None = None
    if found.snap:
        problem = (
            "Docker is a snap, which cannot mount /etc, /opt and most data directories",
            "snap remove docker; then run clusterctl again",
        )
    elif found.podman:
        problem = "`docker` is Podman there", "apt-get remove podman-docker, then run it again"
    elif found.server:
        return
    elif found.hung:
        problem = "the Docker engine is there and does not answer", "systemctl restart docker"
    elif view.facts.engine.rootless:
        problem = "Docker runs rootless there", "dockerd-rootless-setuptool.sh uninstall"
    elif not found.unit and not found.apt:
        problem = (
            f"no container engine, and clusterctl installs one only by apt-get "
            f"({view.facts.os.pretty})",
            "install Docker there: dnf install docker-ce, systemctl enable --now docker",
        )
    elif not found.systemd:
        problem = (
            "no running container engine, and no systemd to start one",
            f"install {PACKAGE} and start dockerd there",
        )
    if problem:
        raise RequirementsNotMet(problem[0], host=view.host.name, hint=problem[1])


def _not_started(view: HostView, found: Found) -> StepFailed:
    journal = view.transport.run(["sh", "-c", WHY_NOT], sudo=True)
    return CommandFailed(
        f"docker.service was started and the engine does not answer: {found.refusal}",
        host=view.host.name,
        hint="systemctl status docker; journalctl -u docker",
        detail=journal.stdout.strip() or None,
    )
