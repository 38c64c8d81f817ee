"""Taking away the packages that clusterctl installed, and nothing else."""

from __future__ import annotations

from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import RequirementsNotMet
from clusterctl.steps.apt import Apt
from clusterctl.steps.container_engine import MARKER
from clusterctl.steps.root_script import root_script

READ_MARKER = 'if [ -f "$1" ]; then cat "$1"; fi'

# An installation cut short may have left an engine that does not answer.
LEFT = """\
timeout 20 docker ps --all --format '{{.Label "clusterctl.cluster"}}={{.Names}}' 2>/dev/null && exit
[ ! -d /var/lib/docker/containers ] || ls /var/lib/docker/containers | sed 's/^/=/'
"""
STOP = "systemctl disable --now docker.service docker.socket containerd.service 2>/dev/null; true"
FORGET = 'rm -f "$1"; rmdir "${1%/*}" 2>/dev/null; true'


class EngineAbsent:
    """The engine is gone, if it was clusterctl that brought it.

    It stays where another cluster has containers. What lies in /var/lib/docker stays, as the
    packages' own purge leaves it. Raises RequirementsNotMet when somebody else's containers
    are there.
    """

    title = "container engine"

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def check(self, view: HostView) -> Change | Unknown | None:
        packages = _ours(view)
        if not packages:
            return None
        told = root_script(view, LEFT, doing="listing containers").splitlines()
        left = [(cluster, name) for cluster, _, name in (line.partition("=") for line in told)]
        foreign = [name for cluster, name in left if not cluster]
        if foreign:
            raise _still_used(view, foreign)
        if any(cluster != self._cluster for cluster, _ in left):
            return None
        if left:
            return Unknown(f"{', '.join(name for _, name in left)} must go first")
        return Change(f"remove {', '.join(packages)}", disruptive=True)

    def apply(self, view: HostView, change: Change) -> None:
        del change
        packages = _ours(view)
        view.say("stopping docker.service")
        root_script(view, STOP, doing="stopping docker.service", timeout=120)
        apt = Apt(view)
        apt.finish_interrupted()
        apt.purge(packages)
        root_script(view, FORGET, MARKER, doing=f"removing {MARKER}")


def _ours(view: HostView) -> list[str]:
    return root_script(view, READ_MARKER, MARKER, doing=f"reading {MARKER}").split()


def _still_used(view: HostView, containers: list[str]) -> RequirementsNotMet:
    return RequirementsNotMet(
        f"other containers use the engine that clusterctl installed: {', '.join(containers)}",
        host=view.host.name,
        hint=f"remove them, or keep the engine: rm {MARKER}",
    )
