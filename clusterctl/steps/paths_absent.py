"""Files and directories that are to be gone, all of clusterctl's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from clusterctl.engine.step import Change, HostView
from clusterctl.steps.root_script import root_script

OURS = ("/etc/clusterctl", "/var/log/clusterctl", "/var/cache/clusterctl", "/opt/clusterctl")

LOOK = 'for path in "$@"; do if [ -e "$path" ]; then echo "$path"; fi; done'

# The directory of ours above goes too, once nothing of another cluster is in it.
REMOVE = """\
set -e
for path in "$@"; do
  rm -rf -- "$path"
  case ${path%/*} in */clusterctl) rmdir "${path%/*}" 2>/dev/null || true;; esac
done
"""


class PathsAbsent:
    """Each path is gone, with all below it. Only paths in clusterctl's own directories."""

    def __init__(self, title: str, paths: Sequence[str], *, within: Sequence[str] = OURS) -> None:
        for path in paths:
            _insist_ours(path, within)
        self.title = title
        self._paths = tuple(paths)

    def check(self, view: HostView) -> Change | None:
        found = root_script(view, LOOK, *self._paths, doing="looking at files").splitlines()
        return Change(f"remove {', '.join(found)}") if found else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        root_script(view, REMOVE, *self._paths, doing="removing files", timeout=300)


def _insist_ours(path: str, within: Sequence[str]) -> None:
    pure = PurePosixPath(path)
    if ".." in pure.parts or not any(pure.is_relative_to(base) for base in within):
        raise ValueError(f"{path} is not clusterctl's to remove")
