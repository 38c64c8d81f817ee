"""Install and remove Python on hosts, which runs the programs that clusterctl sends."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet
from clusterctl.packages.bundle import Bundle, fitting
from clusterctl.packages.target import ENGINE_OF_DOCKER, TOOLKIT, python_package
from clusterctl.steps.container_engine import purge_packages
from clusterctl.steps.files import (
    REMOVE,
    beside,
    installed_by_us,
    root_script,
)
from clusterctl.steps.package_manager import install_recorded, own_manager, target
from clusterctl.steps.package_sources import manager_of
from clusterctl.transport.python import CANDIDATES, IS_USABLE, MISSING

MARKER = "/var/lib/clusterctl/python-packages"  # names of the packages installed with it

LOOK = f"""\
for python in {" ".join(CANDIDATES)}; do
  command -v "$python" >/dev/null || continue
  "$python" -I -c '{IS_USABLE}' 2>/dev/null && echo "$python" && exit
done
exit 0
"""


class HostPython:
    """Step: the host has a Python that can run clusterctl's programs."""

    title = "Python"

    def __init__(self, bundles: Sequence[Bundle] = ()) -> None:
        """`bundles`: package bundles to install from, instead of the host's sources."""
        self._bundles = tuple(bundles)

    def check(self, view: HostView) -> Change | None:
        if view.facts.python3 or _usable(view):
            return None
        bundle = self._bundle(view)
        package = python_package(target(view))
        source = f" from {bundle.path.name}" if bundle else ""
        return Change(f"install {package}{source}", before=view.facts.python_words, after=package)

    def apply(self, view: HostView, _change: Change) -> None:
        if _usable(view):
            return
        package = python_package(target(view))
        if bundle := self._bundle(view):
            # dnf installs every file on its command line.
            engine = (*ENGINE_OF_DOCKER, *TOOLKIT, "docker")
            manager = manager_of(view, bundle, wanted=lambda file: not file.startswith(engine))
        else:
            manager = own_manager(view)
        install_recorded(view, manager, package, MARKER)
        if not _usable(view):
            raise RequirementsNotMet(
                f"{package} is installed, but the host still has {MISSING}",
                host=view.host.name,
                hint="install a newer one on it as python3.9 or later, on root's PATH",
            )

    def _bundle(self, view: HostView) -> Bundle | None:
        """Return the bundle for the host, if any. Raises RequirementsNotMet if it has no Python."""
        if not self._bundles:
            return None
        system = target(view)
        bundle = fitting(self._bundles, system, view.facts.os.architecture, host=view.host.name)
        package = python_package(system)
        if not any(file.name.startswith((f"{package}_", f"{package}-")) for file in bundle.files):
            raise RequirementsNotMet(
                f"has {MISSING}, and the bundle {bundle.path} lacks {package}",
                host=view.host.name,
                hint=f"clusterctl packages bundle --for {system.name} -o DIRECTORY",
            )
        return bundle


class PackagesAbsent:
    """Step: packages that clusterctl installed are removed, unless other packages now depend on
    them or another cluster uses the host."""

    def __init__(self, title: str, record: str, own: str) -> None:
        """`record`: the file with their names; `own`: this cluster's directory on the host."""
        self.title = title
        self._record = record
        self._own = own

    def check(self, view: HostView) -> Change | None:
        ours = installed_by_us(view, self._record)
        if not ours or beside(view, self._own):
            return None
        if set(own_manager(view).would_remove(ours)) - set(ours):
            return None  # other packages would be removed with it
        return Change(f"remove {', '.join(ours)}")

    def apply(self, view: HostView, _change: Change) -> None:
        purge_packages(view, installed_by_us(view, self._record))
        root_script(view, REMOVE, self._record, doing=f"removing {self._record}")


def _usable(view: HostView) -> bool:
    return bool(root_script(view, LOOK, doing="looking for Python", timeout=deadlines.ENGINE_LOOK))
