"""Step that gives the engine's containers GPUs, also after a `systemctl daemon-reload`.

Engines since Docker 25 use CDI: a specification of the host's GPUs, written by the toolkit, and a
switch in daemon.json, on by default since Docker 28.3. Older ones need NVIDIA's runtime in
daemon.json. Both need symlinks in /dev/char to the device nodes, which systemd looks up when it
sets up a container's control group again (nvidia-container-toolkit issue 48); a udev rule recreates
nodes and links when the driver is loaded.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import StepFailed
from clusterctl.steps.container_engine import await_answer, look_with_docker_info
from clusterctl.steps.files import make_directories, root_script
from clusterctl.steps.nvidia_toolkit import KEPT, has_gpus

FIRST_WITH_CDI = 25  # Docker's major version

RULE_PATH = "/etc/udev/rules.d/71-clusterctl-nvidia.rules"
RULE = (
    "# Written by clusterctl.\n"
    'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", '
    'RUN+="/usr/bin/nvidia-modprobe -c 0 -u", '
    'RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"\n'
)

LOOK = """\
# The first device node that the specification $1 gives another major number than the kernel does:
# a container would get a node that no driver serves (nvidia-container-toolkit #1934).
misnumbered() {
  uvm=$(sed -n 's/^ *\\([0-9]*\\) nvidia-uvm$/\\1/p' /proc/devices)
  # YAML and JSON alike: a key and its value on a line
  tr -d '"' <"$1" | tr ',{}[]' '\\n' | sed 's/:/: /' | while read -r word value more _; do
    [ "$word" = - ] && word=$value value=$more
    case $word in
      path:) node=$value ;;
      major:)
        is=
        case $node in */nvidia-uvm | */nvidia-uvm-tools) is=$uvm ;; esac
        [ -n "$is" ] || { [ -c "$node" ] && is=$((0x$(stat -c %t "$node"))); }
        [ -z "$is" ] || [ "$is" = "$value" ] || { echo "$node"; break; }
        ;;
    esac
  done
}
echo "ctk=$(command -v nvidia-ctk)"
echo "info=$(timeout 20 docker info --format '{{json .}}' 2>/dev/null)"
for name in $(timeout 20 docker ps --format '{{.Names}}' 2>/dev/null); do echo "runs=$name"; done
read -r driver 2>/dev/null </sys/module/nvidia/version && echo "driver=$driver"
for spec in /etc/cdi/* /var/run/cdi/*; do
  grep -q nvidia.com/gpu "$spec" 2>/dev/null || continue
  echo "spec=$spec"
  [ -z "$driver" ] || grep -q -F ".so.$driver" "$spec" || continue
  listed=$(grep -o '/dev/nvidia[0-9][0-9]*' "$spec" | sort -u)
  # A node that is not listed may belong to a GPU that the driver lost: only missing ones count.
  gone=0
  for node in $listed; do [ -e "$node" ] || gone=1; done
  if [ -n "$(misnumbered "$spec")" ]; then echo "renumbered=$spec"
  elif [ "$gone" = 0 ] && [ "$(printf '%s\n' "$listed" | grep -c .)" -ge "$2" ]; then
    echo "fresh=$spec"
  else echo "other=$spec"; fi
done
[ -d /sys/module/nvidia ] && for node in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm \
  /dev/nvidia-uvm-tools; do
  [ -c "$node" ] &&
    [ -e "/dev/char/$((0x$(stat -c %t "$node"))):$((0x$(stat -c %T "$node")))" ] ||
    echo "lost=$node"
done
[ -f "$1" ] && echo "rule=yes"
exit 0
"""

# Toolkits since 1.18 have a service that updates the specification. cdi.ours: for `down --purge`
SPECIFY = """\
set -e
if systemctl cat nvidia-cdi-refresh.service >/dev/null 2>&1; then
  systemctl enable --now nvidia-cdi-refresh.path >/dev/null 2>&1 || true
  systemctl restart nvidia-cdi-refresh.service && exit 0
fi
mkdir -p "$1"
[ -e /etc/cdi/nvidia.yaml ] || echo /etc/cdi/nvidia.yaml >"$1/cdi.ours"
mkdir -p /etc/cdi
nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml
"""

# The previous file is kept, for `down --purge` to restore
CONFIGURE = """\
set -e
kept=$1; shift
mkdir -p "$kept" /etc/docker
if [ ! -e "$kept/daemon.json.before" ]; then
  [ ! -e /etc/docker/daemon.json ] || cp /etc/docker/daemon.json "$kept/daemon.json.new"
  touch "$kept/daemon.json.new"
  mv "$kept/daemon.json.new" "$kept/daemon.json.before"
fi
nvidia-ctk runtime configure --runtime=docker "$@"
cp /etc/docker/daemon.json "$kept/daemon.json.ours"
"""

# CUDA's nodes are created by its first use, or by nvidia-modprobe. Some drivers refuse
# --create-all; then the existing nodes are enough. links.before: for `down --purge`
LINK = """\
if [ ! -e "$1/links.before" ]; then
  mkdir -p "$1"
  for link in /dev/char/*; do
    case $(readlink "$link") in */nvidia*) echo "$link";; esac
  done >"$1/links.new"
  mv "$1/links.new" "$1/links.before"
fi
nvidia-modprobe -c 0 -u
nvidia-ctk system create-dev-char-symlinks --create-all ||
  nvidia-ctk system create-dev-char-symlinks
"""

RESTART = "systemctl restart docker.service"


@dataclass(frozen=True)
class GpuAccessFound:
    """The parsed output of `LOOK`."""

    toolkit: bool
    info: dict[str, Any]
    running: tuple[str, ...]
    specs: tuple[str, ...]
    fresh: bool  # A specification is for the loaded driver and has the declared GPUs
    renumbered: bool  # One has other device numbers than the kernel
    other: bool  # One is for the loaded driver, and lacks a GPU or has one that is gone
    unlinked: tuple[str, ...]
    rule: bool

    @property
    def by_cdi(self) -> bool:
        version = re.match(r"\d+", self.info.get("ServerVersion") or "")
        return version is not None and int(version[0]) >= FIRST_WITH_CDI

    @property
    def needs_restart(self) -> bool:
        """Whether daemon.json must change, which the engine reads only when it starts."""
        if self.by_cdi:
            return not self.info.get("CDISpecDirs")
        return "nvidia" not in (self.info.get("Runtimes") or {})

    @property
    def stopped_by_restart(self) -> tuple[str, ...]:
        """Containers that restarting the engine would stop."""
        return () if self.info.get("LiveRestoreEnabled") else self.running


def found_in(text: str) -> GpuAccessFound:
    """Parse the output of `LOOK`. Raises what MALFORMED lists if `docker info` is not JSON."""
    fields: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        fields.setdefault(name, []).append(value)
    info = (fields.get("info") or [""])[0]
    return GpuAccessFound(
        toolkit=any(fields.get("ctk", [])),
        info=json.loads(info) if info.startswith("{") else {},
        running=tuple(fields.get("runs", [])),
        specs=tuple(fields.get("spec", [])),
        fresh="fresh" in fields,
        renumbered="renumbered" in fields,
        other="other" in fields,
        unlinked=tuple(fields.get("lost", [])),
        rule="rule" in fields,
    )


class GpuAccess:
    """Step: containers get GPUs by CDI, or by NVIDIA's runtime if the engine is too old for CDI."""

    title = "GPU access"

    def __init__(self, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._pause = pause

    def check(self, view: HostView) -> Change | Unknown | None:
        if not has_gpus(view):
            return None
        found = _look(view)
        if not found.info.get("ServerVersion"):
            return Unknown("the container engine must be installed first")
        todo = []
        if found.by_cdi and not found.fresh:
            what = "other GPUs" if found.other else "another driver"
            what = "other device numbers" if found.renumbered else what
            stale = f"{found.specs[0]} is for {what}" if found.specs else "missing"
            todo.append(f"write the CDI specification ({stale})")
        if found.unlinked or not found.rule:
            todo.append("link GPU device nodes in /dev/char")
        if found.needs_restart:
            what = "CDI" if found.by_cdi else "NVIDIA's runtime"
            stopped = ", ".join(found.stopped_by_restart) or "no container"
            todo.append(f"enable {what} in Docker and restart it, which stops {stopped}")
        if not todo:
            return None
        disruptive = found.needs_restart and bool(found.stopped_by_restart)
        return Change("; ".join(todo), disruptive=disruptive)

    def apply(self, view: HostView, _change: Change) -> None:
        found = _look(view)
        if found.by_cdi and not found.fresh:
            view.say("writing the CDI specification")
            doing = "writing the CDI specification"
            root_script(view, SPECIFY, KEPT, doing=doing, timeout=deadlines.GPUS_SET_UP)
        if found.unlinked:
            root_script(view, LINK, KEPT, doing="making symlinks in /dev/char")
        if not found.rule:
            make_directories(view, RULE_PATH.rpartition("/")[0])
            view.transport.put(RULE.encode(), RULE_PATH, sudo=True)
        if not found.needs_restart:
            return
        flags = ("--cdi.enabled",) if found.by_cdi else ()
        root_script(view, CONFIGURE, KEPT, *flags, doing="configuring Docker for GPUs")
        view.say("restarting docker.service")
        root_script(view, RESTART, doing="restarting docker.service", timeout=deadlines.SYSTEMD)
        await_answer(view, self._pause)
        if _look(view).needs_restart:
            raise StepFailed(
                "Docker was configured for GPUs and restarted, but does not provide them",
                host=view.host.name,
                hint="check its /etc/docker/daemon.json; journalctl -u docker",
            )


def lists_other_gpus(view: HostView) -> bool:
    """Whether the CDI specification does not match the host's GPUs or the numbers of their device
    nodes, which GpuAccess fixes."""
    found = _look(view)
    return found.by_cdi and (found.other or found.renumbered) and not found.fresh


def _look(view: HostView) -> GpuAccessFound:
    """Inspect the host, whose specification has to list the GPUs that the inventory declares."""
    doing, words = "looking at GPU access", (RULE_PATH, str(len(view.host.gpus)))
    return look_with_docker_info(view, LOOK, *words, doing=doing, parse=found_in)
