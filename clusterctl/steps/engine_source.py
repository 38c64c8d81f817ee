"""Sources of a host's container engine, and how to install it from them: packages, or Docker's
static archive.

Docker documents the archive and its installation (Install Docker Engine from binaries); the units
follow those of Docker's packages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed, RequirementsNotMet
from clusterctl.inventory.model import Packages
from clusterctl.packages.bundle import Bundle, PackageFile, fitting
from clusterctl.packages.repository import docker
from clusterctl.packages.target import (
    CLIENT_OF_DISTRIBUTION,
    ENGINE_OF_DISTRIBUTION,
    ENGINE_OF_DOCKER,
    OWN_ENGINE,
)
from clusterctl.steps.files import ENGINE_PACKAGES, record_installed, root_script
from clusterctl.steps.package_manager import PackageManager, own_manager, target
from clusterctl.steps.package_sources import bring, ensure_source, manager_of

DISTRIBUTIONS = ENGINE_OF_DISTRIBUTION[0]


class EngineSource(Protocol):
    @property
    def name(self) -> str:
        """The engine and its source, shown in the plan."""

    def install(self, view: HostView) -> None:
        """Install the engine. Raises StepFailed."""


class PackagedEngine:
    """An engine installed by a package manager. `manager` returns the host's package manager with
    the sources to use; `candidates`: package names, preferred first."""

    def __init__(
        self, name: str, manager: Callable[[HostView], PackageManager], candidates: Sequence[str]
    ) -> None:
        self.name = name
        self._manager = manager
        self._candidates = tuple(candidates)

    def install(self, view: HostView) -> None:
        manager = self._manager(view)
        manager.prepare()
        if self._candidates[0] not in ENGINE_OF_DOCKER and len(self._candidates) == 1:
            # If it is missing, the package manager's own error is the best.
            found: str | None = self._candidates[0]
        else:
            found = next((name for name in self._candidates if manager.offers(name)), None)
        if found is None:
            raise CommandFailed(
                f"{self.name} has none of {', '.join(self._candidates)}",
                host=view.host.name,
                hint="to see what a bundle contains: clusterctl packages bundle --help",
            )
        wanted = [found]
        if found == ENGINE_OF_DOCKER[0]:
            wanted = [*ENGINE_OF_DOCKER, *_for_iptables(view, manager)]
        elif found == DISTRIBUTIONS and manager.offers(CLIENT_OF_DISTRIBUTION):
            wanted.append(CLIENT_OF_DISTRIBUTION)
        try:
            added = manager.would_add(wanted)
        except RequirementsNotMet as error:
            error.hint = (
                f"{error.hint}; or use the other engine, in the inventory: packages.docker: {{}} "
                "for Docker's, none for the distribution's"
            )
            raise
        record_installed(view, added, ENGINE_PACKAGES)
        view.say(f"installing {' '.join(wanted)}")
        manager.install(wanted)


# Since RHEL 10, the kernel's modules that dockerd's iptables rules need; a weak dependency of
# docker-ce (docker-ce-packaging #1340)
EXTRA_MODULES = "kernel-modules-extra"
_FIRST_WITH_EXTRA = 10


def _for_iptables(view: HostView, manager: PackageManager) -> list[str]:
    system = target(view)
    if system.system == "fedora" or not system.version.isdigit() or system.family == "apt":
        return []
    package = manager.pinned(EXTRA_MODULES, view.facts.os.kernel)
    wanted = int(system.version) >= _FIRST_WITH_EXTRA and manager.offers(package)
    return [package] if wanted else []


CONTAINERD_OF_DOCKER = ENGINE_OF_DOCKER[2]


def engine_source(
    view: HostView,
    packages: Packages,
    bundles: Sequence[Bundle],
    pause: Callable[[float], None] = time.sleep,
    *,
    present: Collection[str] = (),
) -> EngineSource:
    """Return the bundle if there is one; else Docker's repository, if the inventory, the system or
    a `present` package requires it; else the distribution's own package.

    Raises RequirementsNotMet if no bundle is for this host's system, or if neither Docker nor the
    system has packages for it.
    """
    system, given = target(view), packages.docker
    if bundles:
        bundle = fitting(bundles, system, view.facts.os.architecture, host=view.host.name)
        if archive := bundle.static_engine:
            return StaticEngine(bundle, archive)
        return PackagedEngine(
            f"the engine from {bundle.path.name}",
            lambda view: manager_of(view, bundle, wanted=lambda f: "nvidia" not in f, pause=pause),
            [ENGINE_OF_DOCKER[0], DISTRIBUTIONS],
        )
    own = DISTRIBUTIONS if system.family == "apt" else OWN_ENGINE.get(system.system)
    # docker.io's containerd conflicts with Docker's, which Kubernetes may use: it stays.
    kept = CONTAINERD_OF_DOCKER in present
    if own and given is None and not kept:
        return PackagedEngine(own, lambda view: own_manager(view, pause), [own])
    try:
        repository = docker(system, given.url if given else None, given.key if given else None)
    except RequirementsNotMet as error:
        error.host = view.host.name
        raise

    def manager(view: HostView) -> PackageManager:
        ensure_source(view, repository)
        return own_manager(view, pause)

    name = f"docker-ce from {repository.url}"
    if kept and given is None:
        name += f", for the installed {CONTAINERD_OF_DOCKER}"
    return PackagedEngine(name, manager, [ENGINE_OF_DOCKER[0]])


# Paths that we installed, one per line, which `down --purge` removes
ENGINE_FILES = "/var/lib/clusterctl/engine-files"

UNITS = "/etc/systemd/system"
BINARIES = "/usr/bin"  # As in Docker's documentation: sudo's PATH on RHEL lacks /usr/local/bin

NAMES = """\
set -e
command -v tar >/dev/null || { echo "tar is not installed" >&2; exit 1; }
tar -tzf "$1" | while IFS= read -r name; do
  case $name in docker/?*) printf '%s\\n' "${name#docker/}" ;; esac
done
if command -v iptables >/dev/null; then echo "+iptables"; fi
"""

UNPACK = """\
set -e
archive=$1; directory=$2; shift 2
from=$(mktemp -d "$directory/.docker.XXXXXX")
trap 'rm -rf "$from"' EXIT
tar -xzf "$archive" -C "$from"
for name in "$@"; do
  cp "$from/docker/$name" "$directory/.$name.new"
  chmod 755 "$directory/.$name.new"
  mv -f "$directory/.$name.new" "$directory/$name"
done
systemctl daemon-reload
systemctl enable containerd.service
"""

CONTAINERD = """\
# Written by clusterctl.
[Unit]
Description=containerd
After=network.target local-fs.target

[Service]
Type=notify
ExecStartPre=-/sbin/modprobe overlay
ExecStart={binaries}/containerd
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
"""

DOCKER = """\
# Written by clusterctl.
[Unit]
Description=Docker
After=network-online.target containerd.service firewalld.service
Wants=network-online.target
Requires=containerd.service

[Service]
Type=notify
ExecStart={binaries}/dockerd -H unix:///var/run/docker.sock \
--containerd=/run/containerd/containerd.sock{network}
ExecReload=/bin/kill -s HUP $MAINPID
TimeoutStartSec=0
Restart=always
RestartSec=2
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
Delegate=yes
KillMode=process
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
"""

# For a host without iptables, where dockerd would not start: our containers use the host's network;
# others have none
NO_BRIDGE = " --bridge=none --iptables=false --ip6tables=false"


class StaticEngine:
    """An engine installed from the static archive in a bundle."""

    def __init__(self, bundle: Bundle, archive: PackageFile) -> None:
        self._bundle = bundle
        self._archive = archive

    @property
    def name(self) -> str:
        return self._archive.name

    def install(self, view: HostView) -> None:
        archive = f"{bring(view, self._bundle, [self._archive])}/{self._archive.name}"
        listed = root_script(view, NAMES, archive, doing=f"reading {self._archive.name}").split()
        names = [name for name in listed if not name.startswith("+")]
        units = {
            f"{UNITS}/containerd.service": CONTAINERD.format(binaries=BINARIES),
            f"{UNITS}/docker.service": DOCKER.format(
                binaries=BINARIES, network="" if "+iptables" in listed else NO_BRIDGE
            ),
        }
        # Recorded before they are installed, so that an interrupted installation can be removed.
        record_installed(view, [*(f"{BINARIES}/{name}" for name in names), *units], ENGINE_FILES)
        for path, text in units.items():
            view.transport.put(text.encode(), path, sudo=True)
        view.say(f"unpacking {self._archive.name}")
        root_script(
            view, UNPACK, archive, BINARIES, *names,
            doing="unpacking Docker", timeout=deadlines.PACKAGE_FILES,
        )  # fmt: skip
