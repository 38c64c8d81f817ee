"""Step that removes files and directories, all of them clusterctl's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.steps.root_script import root_script

OURS = (
    "/etc/clusterctl",
    "/run/clusterctl",
    "/var/log/clusterctl",
    "/var/cache/clusterctl",
    "/var/lib/clusterctl/weights",
    "/opt/clusterctl",
)

LOOK = 'for path in "$@"; do if [ -e "$path" ]; then echo "$path"; fi; done'

BESIDE = """\
for other in "${1%/*}"/*; do
  if [ -e "$other" ] && [ "$other" != "$1" ]; then echo "${other##*/}"; fi
done
"""

# Also remove the parent directory of ours, once nothing of another cluster is in it.
REMOVE = """\
set -e
for path in "$@"; do
  rm -rf -- "$path"
  case ${path%/*} in */clusterctl) rmdir "${path%/*}" 2>/dev/null || true;; esac
done
"""


class PathsAbsent:
    """Step: each path is removed recursively. Only clusterctl's own directories are allowed.

    `last_of`: this cluster's directory, for shared paths: they stay while another is beside it.
    """

    def __init__(
        self,
        title: str,
        paths: Sequence[str],
        *,
        last_of: str | None = None,
        within: Sequence[str] = OURS,
    ) -> None:
        for path in paths:
            _insist_ours(path, within)
        self.title = title
        self._paths = tuple(paths)
        self._last_of = last_of

    def check(self, view: HostView) -> Change | None:
        if self._last_of and beside(view, self._last_of):
            return None
        found = root_script(view, LOOK, *self._paths, doing="looking at files").splitlines()
        return Change(f"remove {', '.join(found)}") if found else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        root_script(
            view, REMOVE, *self._paths, doing="removing files", timeout=deadlines.PACKAGE_FILES
        )


def beside(view: HostView, own: str) -> list[str]:
    """Return other clusters' directories beside `own`, this cluster's, which need not exist."""
    return root_script(view, BESIDE, own, doing="looking for other clusters").split()


def _insist_ours(path: str, within: Sequence[str]) -> None:
    pure = PurePosixPath(path)
    if ".." in pure.parts or not any(pure.is_relative_to(base) for base in within):
        raise ValueError(f"{path} is not clusterctl's to remove")
