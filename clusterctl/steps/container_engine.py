"""Steps that install Docker on a host without it (Debian, Ubuntu, RHEL and their derivatives), and
remove it again: only packages or files that clusterctl installed.

A running engine is never upgraded, restarted or configured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import TypeVar

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import MALFORMED, CommandFailed, RequirementsNotMet, StepFailed
from clusterctl.inventory.model import Packages
from clusterctl.packages.bundle import Bundle
from clusterctl.steps.engine_source import ENGINE_FILES, EngineSource, engine_source
from clusterctl.steps.files import (
    ENGINE_PACKAGES,
    MAKE_DIRECTORIES,
    installed_by_us,
    record_installed,
    root_script,
)
from clusterctl.steps.package_manager import own_manager

T = TypeVar("T")

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
for name in containerd.io podman-docker; do
  if command -v dpkg-query >/dev/null
  then [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ]
  else rpm -q "$name" >/dev/null 2>&1
  fi && echo "has=$name"
done
[ -d /run/systemd/system ] && echo "systemd=yes"
systemctl cat docker.service >/dev/null 2>&1 && echo "unit=yes"
exit 0
"""

DAEMON_JSON = "/etc/docker/daemon.json"

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
    present: tuple[str, ...] = ()  # Installed packages that an engine's may conflict with


def found_in(text: str) -> EngineFound:
    lines = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    fields = dict(lines)
    return EngineFound(
        client=fields.get("client", ""),
        server=fields.get("server", ""),
        hung=fields.get("status") == "124",
        refusal=fields.get("refusal", ""),
        snap=fields.get("client", "").startswith("/snap/") or "/snap" in fields.get("resolved", ""),
        podman="podman" in fields,
        packages="packages" in fields,
        systemd="systemd" in fields,
        unit="unit" in fields,
        present=tuple(value for name, value in lines if name == "has"),
    )


class ContainerEngine:
    """Step: a Docker engine is installed and answers."""

    title = "container engine"

    def __init__(
        self,
        packages: Packages | None = None,
        bundles: Sequence[Bundle] = (),
        *,
        bridge: IPv4Interface | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Arguments that are not obvious:

        bundles  package bundles to install from, instead of the host's sources
        bridge   address of Docker's bridge, where the site uses the network of its default
        """
        self._bridge = bridge
        self._packages = packages or Packages()
        self._bundles = tuple(bundles)
        self._pause = pause

    def check(self, view: HostView) -> Change | None:
        found = _look(view)
        refusal = _refusal(view, found, brought=bool(self._bundles))
        if refusal:
            raise RequirementsNotMet(refusal[0], host=view.host.name, hint=refusal[1])
        if found.server:
            return None
        if found.client and found.unit:
            return Change("start docker.service", before="stopped", after="running")
        name = self._source(view, found).name
        return Change(f"install {name}", before="no container engine", after=name)

    def apply(self, view: HostView, _change: Change) -> None:
        found = _look(view)
        if not (found.client and found.unit):
            if view.transport.read_file(DAEMON_JSON) is None:
                record_installed(view, [DAEMON_JSON], ENGINE_FILES)
                directory = DAEMON_JSON.rpartition("/")[0]
                root_script(view, MAKE_DIRECTORIES, "755", directory, doing=f"making {directory}")
                settings: dict[str, object] = {"live-restore": True}
                settings |= {"bip": str(self._bridge)} if self._bridge else {}
                text = json.dumps(settings) + "\n"
                view.transport.put(text.encode(), DAEMON_JSON, sudo=True)
            self._source(view, found).install(view)
        if not _look(view).server:
            view.say("starting docker.service")
            # Ignore the status: what counts is whether the engine answers.
            view.transport.run(["sh", "-c", START], sudo=True, timeout=deadlines.SYSTEMD)
            await_answer(view, self._pause)

    def _source(self, view: HostView, found: EngineFound) -> EngineSource:
        return engine_source(
            view, self._packages, self._bundles, self._pause, present=found.present
        )


def await_answer(view: HostView, pause: Callable[[float], None]) -> None:
    """Wait until the engine answers. Raises CommandFailed with the last lines of its journal."""
    deadline = time.monotonic() + deadlines.ENGINE_START
    while not (found := _look(view)).server:
        if time.monotonic() > deadline:
            journal = view.transport.run(["sh", "-c", WHY_NOT], sudo=True).stdout.strip()
            said, fix = _why_not(view, journal) or (
                found.refusal,
                "systemctl status docker; journalctl -u docker",
            )
            raise CommandFailed(
                f"docker.service was started, but the engine does not answer: {said}",
                host=view.host.name,
                hint=fix,
                detail=journal or None,
            )
        pause(1.0)


_RESTART = "sudo systemctl restart docker"

# Part of a line in dockerd's journal, and the fix; {kernel}: the running one
_JOURNAL = (
    (
        "addrtype",
        "sudo dnf install kernel-modules-extra-{kernel} (or kernel-modules-extra and a reboot, if "
        "that version is gone); sudo modprobe xt_addrtype; " + _RESTART,
    ),
    ("iptables not found", "install iptables on it; " + _RESTART),
    ("failed to find iptables", "install iptables on it; " + _RESTART),
    ("daemon.json", "sudo dockerd --validate; correct /etc/docker/daemon.json; " + _RESTART),
    ("no space left", "make room: df -h /var; " + _RESTART),
    ("containerd.sock", "sudo systemctl restart containerd; journalctl -u containerd; " + _RESTART),
    (
        "non-overlapping",
        "every network that Docker would take is in use: set default-address-pools and bip in "
        "/etc/docker/daemon.json; " + _RESTART,
    ),
)


_LINE = 200  # Characters of a line of the journal in a summary: its end has the reason


def _why_not(view: HostView, journal: str) -> tuple[str, str] | None:
    """Return the line of dockerd's journal that shows why it does not start, and the fix; None if
    no line is recognized."""
    for words, fix in _JOURNAL:
        for line in journal.splitlines():
            if words in line.lower():
                said = line if len(line) < _LINE else f"...{line[-_LINE:].partition(' ')[2]}"
                return said, fix.format(kernel=view.facts.os.kernel)
    return None


def look_with_docker_info(
    view: HostView, script: str, *words: str, doing: str, parse: Callable[[str], T]
) -> T:
    """Return the output of `script`, which runs `docker info`, parsed by `parse`; `doing` as in
    `root_script`. Raises CommandFailed, or StepFailed if `parse` raises what MALFORMED lists."""
    text = root_script(view, script, *words, doing=doing, timeout=deadlines.ENGINE_LOOK)
    try:
        return parse(text)
    except MALFORMED as error:
        raise StepFailed(
            "`docker info` printed malformed JSON", host=view.host.name, hint="docker info"
        ) from error


def _look(view: HostView) -> EngineFound:
    doing = "looking for a container engine"
    return found_in(root_script(view, LOOK, doing=doing, timeout=deadlines.ENGINE_LOOK))


def _refusal(view: HostView, found: EngineFound, *, brought: bool) -> tuple[str, str] | None:
    """Return cause and fix for a host that bootstrap cannot fix, else None."""
    if found.snap:
        return (
            "Docker is a snap, which cannot mount /etc, /opt and most data directories",
            "snap remove docker; then run clusterctl again",
        )
    remove = "apt-get" if view.facts.os.debian_like else "dnf"
    if found.podman:
        return "its `docker` is Podman", f"sudo {remove} remove podman-docker; Podman stays"
    if "podman-docker" in found.present and not (found.server or brought):
        return (
            "podman-docker is installed, which conflicts with Docker's client",
            f"sudo {remove} remove podman-docker; Podman stays",
        )
    if found.server:
        return None
    if found.hung:
        return "the Docker engine is installed but does not answer", "systemctl restart docker"
    if view.facts.engine.rootless:
        return "its Docker runs rootless", "dockerd-rootless-setuptool.sh uninstall"
    if not (found.unit or found.packages or brought):
        return (
            f"no container engine, and neither apt-get nor dnf to install one "
            f"({view.facts.os.pretty})",
            "bring Docker's static archive: docs/offline.md; or install and start Docker on it",
        )
    if not found.systemd:
        return (
            "no running container engine, and no systemd to start one",
            "install Docker and start dockerd on it",
        )
    return None


# After an interrupted installation the engine may not answer: list its containers' directories.
LEFT = """\
timeout 20 docker ps --all --format '{{.Label "clusterctl.cluster"}}={{.Names}}' 2>/dev/null && exit
[ ! -d /var/lib/docker/containers ] || ls /var/lib/docker/containers | sed 's/^/=/'
"""
STOP = "systemctl disable --now docker.service docker.socket containerd.service 2>/dev/null; true"
FORGET_ENGINE = """\
rm -f "$1"; rmdir "${1%/*}" 2>/dev/null
rm -f /etc/apt/sources.list.d/clusterctl-docker.list /etc/apt/keyrings/clusterctl-docker.asc \
  /etc/yum.repos.d/clusterctl-docker.repo /etc/pki/rpm-gpg/RPM-GPG-KEY-clusterctl-docker
true
"""
REMOVE_FILES = """\
rm -f "$@"
systemctl daemon-reload
true
"""


class EngineAbsent:
    """Step: an engine that clusterctl installed is removed.

    It stays if another cluster has containers. /var/lib/docker keeps its content, as when packages
    are purged. Raises RequirementsNotMet if there are containers not created by clusterctl.
    """

    title = "container engine"

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def check(self, view: HostView) -> Change | Unknown | None:
        ours = [*installed_by_us(view, ENGINE_PACKAGES), *installed_by_us(view, ENGINE_FILES)]
        if not ours:
            return None
        lines = root_script(view, LEFT, doing="listing containers").splitlines()
        left = [(cluster, name) for cluster, _, name in (line.partition("=") for line in lines)]
        foreign = [name for cluster, name in left if not cluster]
        if foreign:
            raise RequirementsNotMet(
                f"other containers use the engine that clusterctl installed: {', '.join(foreign)}",
                host=view.host.name,
                hint=f"remove them, or keep the engine: rm {ENGINE_PACKAGES}",
            )
        if any(cluster != self._cluster for cluster, _ in left):
            return None
        if left:
            return Unknown(f"{', '.join(name for _, name in left)} must be removed first")
        return Change(f"remove {', '.join(ours)}", disruptive=True)

    def apply(self, view: HostView, _change: Change) -> None:
        view.say("stopping docker.service")
        root_script(view, STOP, doing="stopping docker.service", timeout=deadlines.SYSTEMD)
        if packages := installed_by_us(view, ENGINE_PACKAGES):
            purge_packages(view, packages)
        if files := installed_by_us(view, ENGINE_FILES):
            root_script(view, REMOVE_FILES, *files, doing="removing Docker's files")
        for record in (ENGINE_FILES, ENGINE_PACKAGES):
            root_script(view, FORGET_ENGINE, record, doing=f"removing {record}")


def purge_packages(view: HostView, packages: Sequence[str]) -> None:
    """Remove packages, after finishing the package manager's interrupted work."""
    manager = own_manager(view)
    manager.finish_interrupted()
    manager.purge(packages)
