"""Steps for a systemd unit that starts the node container again after the engine did not.

When Docker itself starts (boot, power loss, `systemctl restart docker`), it starts the containers
that ran before, and tries each only once. One with CDI devices fails then if the engine registers
CDI after its containers (moby issue 49989, releases before 28.2), or if the host writes the CDI
specification later during boot. The restart policy ignores such failures.

docker.service pulls in the unit, which starts the container only if it did not start for want of
CDI devices: one that was stopped by hand stays stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from clusterctl import deadlines
from clusterctl.containers.spec import container_name
from clusterctl.engine.step import Change, HostView
from clusterctl.steps.files import make_directories, root_script

UNITS = "/etc/systemd/system"

# systemd doubles the dollar signs of shell variables. Type=exec is missing before systemd 240, and
# `oneshot` would keep the host `starting` for as long as the script waits.
UNIT = """\
# Written by clusterctl.
[Unit]
Description=Start {container} if Docker could not give it CDI devices at its own start
After=docker.service

[Service]
Type=simple
Environment=CONTAINER={container} "STATE={{{{.State.Running}}}} {{{{.State.Error}}}}"
ExecStart=/bin/sh -c 'for attempt in $$(seq 60); do \\
  case $$(timeout 20 docker inspect --format "$$STATE" "$$CONTAINER") in \\
    false*[Cc][Dd][Ii]*) timeout 120 docker start "$$CONTAINER" && exit 0;; \\
    true*|false*) exit 0;; \\
  esac; sleep 5; done; exit 1'

[Install]
WantedBy=docker.service
"""

# Argument: path of the unit. Systemd says what it has read, which files alone do not.
LOOK = """\
if ! [ -d /run/systemd/system ] || ! systemctl cat docker.service >/dev/null 2>&1; then echo other
elif systemctl show --property=Wants docker.service | grep -qwF "${1##*/}" &&
  systemctl show --property=NeedDaemonReload "${1##*/}" | grep -q no
then echo wanted
else echo unknown
fi
[ ! -f "$1" ] || sha256sum <"$1" | cut -c1-64
"""

# `enable` reads all units again, which takes GPUs away from containers without links in /dev/char:
# GpuAccess makes them first.
ENABLE = 'systemctl enable "${1##*/}" 2>&1 && systemctl daemon-reload'

REMOVE = """\
systemctl disable --now "${1##*/}" 2>/dev/null
rm -f "$1"
systemctl daemon-reload
"""


def unit_path(cluster: str) -> str:
    return f"{UNITS}/{container_name(cluster)}-devices.service"


class StartedAfterEngine:
    """Step: the unit is there, and systemd knows it. For hosts whose node container has CDI devices
    and whose Docker is a unit of systemd; `facts/requirements.py` names the others."""

    title = "start after Docker"

    def __init__(self, cluster: str, has_cdi: Callable[[HostView], bool]) -> None:
        self._path = unit_path(cluster)
        self._unit = UNIT.format(container=container_name(cluster)).encode()
        self._has_cdi = has_cdi

    def check(self, view: HostView) -> Change | None:
        if not self._has_cdi(view):
            return None
        found = _look(view, self._path)
        ready = ["wanted", hashlib.sha256(self._unit).hexdigest()]
        if found in (ready, ["other"]):
            return None
        return Change("start the node container after Docker, if Docker does not")

    def apply(self, view: HostView, change: Change) -> None:
        del change
        make_directories(view, UNITS)
        view.transport.put(self._unit, self._path, sudo=True)
        doing = "enabling the unit that starts the node container"
        root_script(view, ENABLE, self._path, doing=doing, timeout=deadlines.SYSTEMD)


class NotStartedAfterEngine:
    """Step: the unit is gone."""

    title = "start after Docker"

    def __init__(self, cluster: str) -> None:
        self._path = unit_path(cluster)

    def check(self, view: HostView) -> Change | None:
        left = len(_look(view, self._path)) > 1
        return Change(f"remove {self._path}") if left else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        doing = f"removing {self._path}"
        root_script(view, REMOVE, self._path, doing=doing, timeout=deadlines.SYSTEMD)


def _look(view: HostView, path: str) -> list[str]:
    """Return `wanted`, `unknown` or `other`, and the file's digest if there is one."""
    return root_script(view, LOOK, path, doing="looking at systemd's units").split()
