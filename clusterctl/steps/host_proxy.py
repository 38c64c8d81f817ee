"""Step that configures the inventory's HTTP proxy on a host: for Docker in a file next to its unit,
and for clusterctl's package installations with the same variables. Containers do not get it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.steps.container_engine import await_answer, look_with_docker_info
from clusterctl.steps.files import make_directories, make_private, root_script
from clusterctl.steps.package_manager import PROXIES

UNIT_FILES = "/etc/systemd/system/docker.service.d"

LOOK_AT_FILES = """\
for path in "$@"; do
  [ -f "$path" ] && echo "file=$(sha256sum <"$path" | cut -c1-64)" || echo file=none
done
"""

_LOOK_AT_DOCKER = """\
[ -d /run/systemd/system ] && echo systemd=yes
echo "info=$(timeout 20 docker info --format '{{json .}}' 2>/dev/null)"
for name in $(timeout 20 docker ps --format '{{.Names}}' 2>/dev/null); do echo "runs=$name"; done
exit 0
"""

LOOK = LOOK_AT_FILES + _LOOK_AT_DOCKER

RESTART = "systemctl daemon-reload && systemctl restart docker.service"

# No daemon-reload, which takes GPUs away from running containers on some hosts.
REMOVE = """\
for path in "$@"; do
  rm -f -- "$path"
  rmdir -p "${path%/*}" 2>/dev/null
done
true
"""


@dataclass(frozen=True)
class ProxyFound:
    """The parsed output of `LOOK`."""

    digests: tuple[str, ...]  # Of the files, in order; "none" for a missing one
    systemd: bool
    info: Mapping[str, Any]  # Empty unless Docker answers
    running: tuple[str, ...]

    @property
    def stopped_by_restart(self) -> tuple[str, ...]:
        return () if self.info.get("LiveRestoreEnabled") else self.running

    def uses(self, variables: Mapping[str, str], no_proxy: Collection[str]) -> bool:
        """Whether Docker uses this proxy, except for everything in `no_proxy`; also true without
        Docker."""
        if not self.info.get("ServerVersion"):
            return True
        names = {"http_proxy": "HttpProxy", "https_proxy": "HttpsProxy"}
        without = str(self.info.get("NoProxy") or "").split(",")
        return set(no_proxy) <= set(without) and all(
            (self.info.get(said) or "") == variables.get(name, "") for name, said in names.items()
        )


def found_in(text: str) -> ProxyFound:
    """Parse the output of `LOOK`. Raises what MALFORMED lists if `docker info` is not JSON."""
    rows = [line.partition("=")[::2] for line in text.splitlines()]
    info = next((value for name, value in rows if name == "info"), "")
    return ProxyFound(
        digests=tuple(value for name, value in rows if name == "file"),
        systemd=("systemd", "yes") in rows,
        info=json.loads(info) if info.startswith("{") else {},
        running=tuple(value for name, value in rows if name == "runs"),
    )


class HostProxy:
    """Step: Docker and package managers use the proxy in `variables`, or none if they are empty."""

    title = "proxy"

    def __init__(
        self,
        cluster: str,
        variables: Mapping[str, str],
        no_proxy: Collection[str] = (),
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`no_proxy`: the part of the variable that a running Docker must have. Docker is not
        restarted, which may stop a service, for the rest: the hosts of a growing cluster."""
        own = f"{PROXIES}/{cluster}.env"
        text = "".join(f"{name}='{value}'\n" for name, value in variables.items())
        unit = f"# Written by clusterctl.\n[Service]\nEnvironmentFile=-{own}\n"
        self.files = {own: text, f"{UNIT_FILES}/clusterctl.{cluster}.conf": unit}
        self._variables, self._no_proxy = variables, no_proxy
        self._pause = pause

    def check(self, view: HostView) -> Change | None:
        found = self._look(view)
        if not self._variables:
            if set(found.digests) == {"none"}:
                return None
            return Change("remove the proxy, which a running Docker keeps until its next start")
        restart = not self._is_used(found)
        if restart and not found.systemd:
            raise RequirementsNotMet(
                "packages.proxy needs systemd, which starts Docker with it",
                host=view.host.name,
                hint="remove the key, and start its dockerd with HTTPS_PROXY",
            )
        if not restart and not self._differing(found):
            return None
        name = self._variables.get("https_proxy") or self._variables["http_proxy"]
        summary = f"use the proxy {name}"
        stopped = found.stopped_by_restart
        if restart:
            summary += f" and restart Docker, which stops {', '.join(stopped) or 'no container'}"
        return Change(summary, disruptive=restart and bool(stopped))

    def apply(self, view: HostView, _change: Change) -> None:
        found = self._look(view)
        if not self._variables:
            root_script(view, REMOVE, *self.files, doing="removing the proxy")
            return
        make_private(view, PROXIES)
        make_directories(view, UNIT_FILES)
        for path in self._differing(found):
            view.transport.put(self.files[path].encode(), path, sudo=True)
        if self._is_used(found):
            return
        view.say("restarting docker.service")
        root_script(view, RESTART, doing="restarting docker.service", timeout=deadlines.SYSTEMD)
        await_answer(view, self._pause)
        if not self._is_used(self._look(view)):
            raise StepFailed(
                "Docker was restarted with the proxy, but uses a different one",
                host=view.host.name,
                hint="check `proxies` in its /etc/docker/daemon.json, and: systemctl cat "
                "docker.service",
            )

    def _is_used(self, found: ProxyFound) -> bool:
        return found.uses(self._variables, self._no_proxy)

    def _differing(self, found: ProxyFound) -> list[str]:
        pairs = zip(self.files.items(), found.digests, strict=True)
        return [
            path
            for (path, text), digest in pairs
            if digest != hashlib.sha256(text.encode()).hexdigest()
        ]

    def _look(self, view: HostView) -> ProxyFound:
        doing = "looking at the proxy"
        script = LOOK if self._variables else LOOK_AT_FILES  # Docker may hang
        return look_with_docker_info(view, script, *self.files, doing=doing, parse=found_in)
