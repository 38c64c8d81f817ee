"""Taking away the packages that clusterctl installed, and nothing else."""

from __future__ import annotations

from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet
from clusterctl.steps.apt import Apt
from clusterctl.steps.container_engine import MARKER
from clusterctl.steps.root_script import root_script

READ_MARKER = 'if [ -f "$1" ]; then cat "$1"; fi'
# An installation cut short may have left an engine that does not answer.
FOREIGN = """\
timeout 20 docker ps --all --format '{{.Names}}' 2>/dev/null && exit
[ ! -d /var/lib/docker/containers ] || ls /var/lib/docker/containers
"""
STOP = "systemctl disable --now docker.service docker.socket containerd.service 2>/dev/null; true"
FORGET = 'rm -f "$1"; rmdir "${1%/*}" 2>/dev/null; true'


class EngineAbsent:
    """The engine is gone, if it was clusterctl that brought it.

    Images and volumes that it holds go with it (the packages' own purge leaves /var/lib/docker
    to the user, and so does this). Raises RequirementsNotMet when containers are left on it.
    """

    title = "container engine"

    def check(self, view: HostView) -> Change | None:
        packages = _ours(view)
        if not packages:
            return None
        left = root_script(view, FOREIGN, doing="listing containers").split()
        if left:
            raise RequirementsNotMet(
                f"other containers use the engine that clusterctl installed: {', '.join(left)}",
                host=view.host.name,
                hint=f"remove them, or keep the engine: rm {MARKER}",
            )
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
