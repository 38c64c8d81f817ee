"""Steps that install and remove NVIDIA's container toolkit: its four packages, all of one version.

Its source is the bundle if there is one, else the host's own sources if they have the version, else
NVIDIA's repository. An installed toolkit is left alone, unless the inventory sets a different
version or its packages have different ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet
from clusterctl.inventory.model import Packages
from clusterctl.packages.bundle import Bundle, fitting
from clusterctl.packages.repository import Repository, nvidia
from clusterctl.packages.target import TOOLKIT as PACKAGES
from clusterctl.packages.target import TOOLKIT_VERSION as VERSION
from clusterctl.steps.container_engine import purge_packages
from clusterctl.steps.files import beside, record_installed, root_script
from clusterctl.steps.package_manager import own_manager, target
from clusterctl.steps.package_sources import ensure_source, manager_of

KEPT = "/var/lib/clusterctl"
MARKER = f"{KEPT}/toolkit-packages"

LOOK = """\
for name in "$@"; do
  if command -v dpkg-query >/dev/null; then
    dpkg-query -W -f='${db:Status-Status} ${Package} ${Version}\\n' "$name" 2>/dev/null
  else
    rpm -q --qf 'installed %{NAME} %{VERSION}-%{RELEASE}\\n' "$name" 2>/dev/null
  fi
done
command -v nvidia-ctk
for name in $(timeout 20 docker ps --format '{{.Names}}' 2>/dev/null); do echo "runs $name"; done
exit 0
"""

LEFT = """\
[ ! -f "$1" ] || cat "$1"
[ ! -e "${1%/*}/daemon.json.before" ] || echo /etc/docker/daemon.json
[ ! -e "${1%/*}/cdi.ours" ] || cat "${1%/*}/cdi.ours"
[ ! -e "${1%/*}/links.before" ] || echo links to GPUs in /dev/char
"""

# A daemon.json that was changed since is not restored. Links are made again at each boot, by our
# rule, so that all are ours that were not there before the first bootstrap.
RESTORE = """\
cd "$1" || exit 0
if [ -e links.before ]; then
  for link in /dev/char/*; do
    case $(readlink "$link") in */nvidia*) grep -qxF "$link" links.before || rm -f "$link";; esac
  done
fi
if [ -e cdi.ours ]; then rm -f /etc/cdi/nvidia.yaml; rmdir /etc/cdi 2>/dev/null; fi
if [ -e daemon.json.before ] && cmp -s daemon.json.ours /etc/docker/daemon.json; then
  if [ -s daemon.json.before ]; then cat daemon.json.before >/etc/docker/daemon.json
  else rm -f /etc/docker/daemon.json; rmdir /etc/docker 2>/dev/null; fi
fi
rm -f daemon.json.before daemon.json.ours cdi.ours links.before toolkit-packages \
  /etc/udev/rules.d/71-clusterctl-nvidia.rules \
  /etc/apt/sources.list.d/clusterctl-nvidia-container-toolkit.list \
  /etc/apt/keyrings/clusterctl-nvidia-container-toolkit.asc \
  /etc/yum.repos.d/clusterctl-nvidia-container-toolkit.repo \
  /etc/pki/rpm-gpg/RPM-GPG-KEY-clusterctl-nvidia-container-toolkit
cd /; rmdir "$1" 2>/dev/null
true
"""


class NvidiaToolkit:
    """Step: the toolkit is installed on hosts with NVIDIA GPUs, present or declared."""

    title = "NVIDIA toolkit"

    def __init__(
        self,
        packages: Packages | None = None,
        bundles: Sequence[Bundle] = (),
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._packages = packages or Packages()
        self._bundles = tuple(bundles)
        self._pause = pause

    def check(self, view: HostView) -> Change | None:
        if not has_gpus(view):
            return None
        lines = root_script(view, LOOK, *PACKAGES, doing="looking for the toolkit").splitlines()
        words = [line.split() for line in lines if line.strip()]
        found = {word[1]: word[2] for word in words if word[0] == "installed"}
        if not found and any(line.startswith("/") for line in lines):
            return None  # not from packages, such as on NixOS: leave it to its owner
        same = len(found) == len(PACKAGES) and len(set(found.values())) == 1
        if same and self._packages.toolkit in (None, *found.values()):
            return None
        running = [word[1] for word in words if word[0] == "runs"]
        bundle = self._bundle(view)
        version = self._version(view)
        source = bundle.path.name if bundle else self._repository(view).url
        summary = f"install {PACKAGES[0]} {version} from {source}"
        versions = ", ".join(sorted(set(found.values())))
        if found and running:
            summary += f"; reloads systemd, which may take the GPUs of {', '.join(running)}"
        return Change(
            summary,
            before=versions or "no NVIDIA toolkit",
            after=version,
            disruptive=bool(found and running),
        )

    def apply(self, view: HostView, _change: Change) -> None:
        version, bundle = self._version(view), self._bundle(view)
        if bundle:
            manager = manager_of(view, bundle, pause=self._pause)
        else:
            manager = own_manager(view, self._pause)
        manager.prepare()
        if not bundle and not manager.offers(manager.pinned(PACKAGES[0], version)):
            ensure_source(view, self._repository(view))
            manager.prepare()
        wanted = [manager.pinned(name, version) for name in PACKAGES]
        record_installed(view, manager.would_add(wanted), MARKER)
        view.say(f"installing {PACKAGES[0]} {version}")
        manager.install(wanted)

    def _bundle(self, view: HostView) -> Bundle | None:
        if not self._bundles:
            return None
        system, machine = target(view), view.facts.os.architecture
        bundle = fitting(self._bundles, system, machine, host=view.host.name)
        make = f"clusterctl packages bundle --for {system.name} -o DIRECTORY"
        if bundle.toolkit is None:
            raise RequirementsNotMet(
                f"has GPUs, but the bundle {bundle.path} lacks NVIDIA's toolkit",
                host=view.host.name,
                hint=f"{make}, without --engine-only",
            )
        if self._packages.toolkit not in (None, bundle.toolkit):
            raise RequirementsNotMet(
                f"packages.toolkit is {self._packages.toolkit}, but the bundle {bundle.path} "
                f"contains {bundle.toolkit}",
                host=view.host.name,
                hint=f"{make} --toolkit {self._packages.toolkit}; or remove packages.toolkit",
            )
        return bundle

    def _version(self, view: HostView) -> str:
        bundle = self._bundle(view)
        return (bundle and bundle.toolkit) or self._packages.toolkit or VERSION

    def _repository(self, view: HostView) -> Repository:
        return nvidia(target(view), self._packages.nvidia.url, self._packages.nvidia.key)


class ToolkitAbsent:
    """Step: nothing is left of what clusterctl installed or created for GPUs: packages, sources,
    daemon.json, CDI specification, links. Removes nothing while another cluster has a directory
    next to `own`, this cluster's."""

    title = "NVIDIA toolkit"

    def __init__(self, own: str) -> None:
        self._own = own

    def check(self, view: HostView) -> Change | None:
        left = _left(view)
        if left and beside(view, self._own):
            return None
        return Change(f"remove {', '.join(left)}") if left else None

    def apply(self, view: HostView, _change: Change) -> None:
        packages = [name for name in _left(view) if "/" not in name]
        if packages:
            purge_packages(view, packages)
        root_script(view, RESTORE, KEPT, doing="removing what was installed for GPUs")


def _left(view: HostView) -> list[str]:
    """Return the packages that clusterctl installed, and the files that it changed or created."""
    return root_script(view, LEFT, MARKER, doing=f"reading {MARKER}").splitlines()


def has_gpus(view: HostView) -> bool:
    """Whether the host has NVIDIA GPUs, or the inventory declares some."""
    return bool(view.facts.gpus.gpus or view.host.gpus)
