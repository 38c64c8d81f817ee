"""Step that removes the engine that clusterctl installed, packages or files, and nothing else."""

from __future__ import annotations

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import RequirementsNotMet
from clusterctl.steps.apt import Apt
from clusterctl.steps.dnf import Dnf
from clusterctl.steps.installed import MARKER, installed_by_us
from clusterctl.steps.package_manager import PackageManager, target
from clusterctl.steps.root_script import root_script
from clusterctl.steps.static_engine import FILES_MARKER

# After an interrupted installation the engine may not answer: list its containers' directories.
LEFT = """\
timeout 20 docker ps --all --format '{{.Label "clusterctl.cluster"}}={{.Names}}' 2>/dev/null && exit
[ ! -d /var/lib/docker/containers ] || ls /var/lib/docker/containers | sed 's/^/=/'
"""
STOP = "systemctl disable --now docker.service docker.socket containerd.service 2>/dev/null; true"
FORGET = """\
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

    It stays if another cluster has containers. The content of /var/lib/docker stays, as with the
    packages' own purge. Raises RequirementsNotMet if there are containers not created by
    clusterctl.
    """

    title = "container engine"

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def check(self, view: HostView) -> Change | Unknown | None:
        ours = [*installed_by_us(view, MARKER), *installed_by_us(view, FILES_MARKER)]
        if not ours:
            return None
        told = root_script(view, LEFT, doing="listing containers").splitlines()
        left = [(cluster, name) for cluster, _, name in (line.partition("=") for line in told)]
        foreign = [name for cluster, name in left if not cluster]
        if foreign:
            raise RequirementsNotMet(
                f"other containers use the engine that clusterctl installed: {', '.join(foreign)}",
                host=view.host.name,
                hint=f"remove them, or keep the engine: rm {MARKER}",
            )
        if any(cluster != self._cluster for cluster, _ in left):
            return None
        if left:
            return Unknown(f"{', '.join(name for _, name in left)} must go first")
        return Change(f"remove {', '.join(ours)}", disruptive=True)

    def apply(self, view: HostView, change: Change) -> None:
        del change
        view.say("stopping docker.service")
        root_script(view, STOP, doing="stopping docker.service", timeout=deadlines.SYSTEMD)
        if packages := installed_by_us(view, MARKER):
            manager_here(view).purge(packages)
        if files := installed_by_us(view, FILES_MARKER):
            root_script(view, REMOVE_FILES, *files, doing="removing Docker's files")
        for marker in (FILES_MARKER, MARKER):
            root_script(view, FORGET, marker, doing=f"removing {marker}")


def manager_here(view: HostView) -> PackageManager:
    """Return the host's package manager with its own sources, after finishing interrupted work."""
    if target(view).family == "dnf":
        return Dnf(view)
    apt = Apt(view)
    apt.finish_interrupted()
    return apt
