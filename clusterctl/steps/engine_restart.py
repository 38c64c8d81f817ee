"""Steps for systemd units that do with node containers what Docker itself does not do.

When Docker starts (boot, power loss, `systemctl restart docker`), it tries once to start each
container that ran before. A container with CDI devices then fails if the engine registers CDI after
its containers (moby issue 49989, releases before 28.2), or if the host writes the CDI specification
later during boot. The restart policy ignores such failures.

docker.service pulls in one unit, which starts the container only if it failed for lack of CDI
devices: one that was stopped by hand stays stopped.

With live-restore, Docker leaves containers running when it ends, even when the host shuts down
(moby issue 31547): the other unit then ends the supervisor, which lets running requests finish.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from clusterctl import deadlines
from clusterctl.containers.spec import container_name
from clusterctl.engine.step import Change, HostView
from clusterctl.steps.files import line_per_path, make_directories, root_script

UNITS = "/etc/systemd/system"

# systemd doubles the dollar signs of shell variables. Type=exec is missing before systemd 240, and
# `oneshot` would keep the host `starting` for as long as the script waits.
DEVICES = """\
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

# It ends after Docker, which would start the container again, and before the network does. To
# Docker the container has not been stopped by hand: it starts again with the host.
SHUTDOWN = """\
# Written by clusterctl.
[Unit]
Description=End {container} when the host shuts down, if Docker leaves it running
After=network.target
Before=docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
Environment="SUPERVISOR=^python3 /opt/clusterctl/[^ ]*/node.pyz supervise --cluster {cluster} "
ExecStart=/bin/true
ExecStop=/bin/sh -c 'case $$(systemctl is-system-running) in stopping) ;; *) exit 0;; esac; \\
  pkill -TERM -u 0 -f "$$SUPERVISOR"; \\
  for second in $$(seq 100); do pgrep -u 0 -f "$$SUPERVISOR" >/dev/null || exit 0; sleep 1; done'
TimeoutStopSec=110

[Install]
WantedBy=docker.service
"""

# Arguments: paths of the units. Systemd says what it has read, which files alone do not.
LOOK = """\
for path in "$@"; do
  if ! [ -d /run/systemd/system ] || ! systemctl cat docker.service >/dev/null 2>&1
  then known=other
  elif systemctl show --property=Wants docker.service | grep -qwF "${path##*/}" &&
    systemctl show --property=NeedDaemonReload "${path##*/}" | grep -q no
  then known=wanted
  else known=unknown
  fi
  [ -f "$path" ] && digest=$(sha256sum <"$path" | cut -c1-64) || digest=none
  echo "$known $digest"
done
"""

# `enable` reads all units again, which takes GPUs away from containers without links in /dev/char:
# GpuAccess makes them first.
ENABLE = """\
for path in "$@"; do
  systemctl enable "${path##*/}" 2>&1 || exit
done
systemctl daemon-reload
for path in "$@"; do
  systemctl start --no-block "${path##*/}" 2>&1 || exit
done
"""

REMOVE = """\
for path in "$@"; do
  systemctl disable --now "${path##*/}" 2>/dev/null
  rm -f "$path"
done
systemctl daemon-reload
"""


def units(cluster: str) -> dict[str, str]:
    """Return the units by path, the one for CDI devices first."""
    container = container_name(cluster)
    texts = {"devices": DEVICES, "shutdown": SHUTDOWN}
    return {
        f"{UNITS}/{container}-{name}.service": text.format(container=container, cluster=cluster)
        for name, text in texts.items()
    }


class UnitsBesideEngine:
    """Step: the units exist, and systemd has loaded them, on hosts whose Docker is a systemd unit;
    `facts/requirements.py` names the others. The one for CDI devices is for hosts whose node
    container has some."""

    title = "units beside Docker"

    def __init__(self, cluster: str, has_cdi: Callable[[HostView], bool]) -> None:
        self._units = units(cluster)
        self._has_cdi = has_cdi

    def check(self, view: HostView) -> Change | None:
        wanted = self._wanted(view)
        ready = [f"wanted {hashlib.sha256(text.encode()).hexdigest()}" for text in wanted.values()]
        pairs = zip(wanted, _look(view, list(wanted)), ready, strict=True)
        names = [
            path.rpartition("/")[2]
            for path, found, expected in pairs
            if found != expected and not found.startswith("other ")
        ]
        if not names:
            return None
        return Change(f"add {' and '.join(names)}, for restarts of Docker and of the host")

    def apply(self, view: HostView, _change: Change) -> None:
        wanted = self._wanted(view)
        make_directories(view, UNITS)
        for path, text in wanted.items():
            view.transport.put(text.encode(), path, sudo=True)
        doing = "enabling the units beside Docker's"
        root_script(view, ENABLE, *wanted, doing=doing, timeout=deadlines.SYSTEMD)

    def _wanted(self, view: HostView) -> dict[str, str]:
        has_cdi = self._has_cdi(view)
        return {
            path: text for path, text in self._units.items() if has_cdi or "devices" not in path
        }


class NoUnitsBesideEngine:
    """Step: the units are gone."""

    title = "units beside Docker"

    def __init__(self, cluster: str) -> None:
        self._paths = list(units(cluster))

    def check(self, view: HostView) -> Change | None:
        left = self._left(view)
        return Change(f"remove {', '.join(left)}") if left else None

    def apply(self, view: HostView, _change: Change) -> None:
        left = self._left(view)
        doing = f"removing {', '.join(left)}"
        root_script(view, REMOVE, *left, doing=doing, timeout=deadlines.SYSTEMD)

    def _left(self, view: HostView) -> list[str]:
        pairs = zip(self._paths, _look(view, self._paths), strict=True)
        return [path for path, found in pairs if not found.endswith(" none")]


def _look(view: HostView, paths: list[str]) -> list[str]:
    """Return for each path `wanted`, `unknown` or `other`, and the file's digest or `none`."""
    return line_per_path(view, LOOK, paths, doing="looking at systemd's units")
