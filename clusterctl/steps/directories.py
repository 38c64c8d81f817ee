"""Step that creates clusterctl's directories on a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.engine.step import Change, HostView
from clusterctl.steps.root_script import root_script

LOOK = """\
for path in "$@"; do
  [ -d "$path" ] && stat -L -c '%a %u' "$path" || echo none
done
"""

MAKE = """\
set -e
while [ $# -gt 0 ]; do
  mkdir -p "$2"
  chown 0:0 "$2"
  chmod "$1" "$2"
  shift 2
done
"""


@dataclass(frozen=True)
class Directory:
    """A directory owned by root, with its mode."""

    path: str
    mode: int = 0o755


def node_directories(cluster: str, version: str) -> tuple[Directory, ...]:
    """Return the directories of every node of `cluster`, parents first (layout: node.documents).

    The configuration is accessible to root only, as it contains secrets.
    """
    return (
        Directory("/etc/clusterctl"),
        Directory(f"/etc/clusterctl/{cluster}", 0o700),
        Directory(f"/etc/clusterctl/{cluster}/services", 0o700),
        Directory("/var/log/clusterctl"),
        Directory(f"/var/log/clusterctl/{cluster}"),
        Directory("/run/clusterctl"),
        Directory(f"/run/clusterctl/{cluster}"),
        Directory("/var/cache/clusterctl"),
        Directory("/opt/clusterctl"),
        Directory(f"/opt/clusterctl/{version}"),
    )


class DirectoriesPresent:
    """Step: each directory exists with its mode, owned by root."""

    title = "directories"

    def __init__(self, wanted: Sequence[Directory]) -> None:
        self._wanted = tuple(wanted)

    def check(self, view: HostView) -> Change | None:
        paths = [directory.path for directory in self._wanted]
        told = root_script(view, LOOK, *paths, doing="looking at directories").splitlines()
        wrong = [
            directory.path
            for directory, found in zip(self._wanted, told, strict=True)
            if found != f"{directory.mode:o} 0"
        ]
        return Change(f"make {', '.join(wrong)}") if wrong else None

    def apply(self, view: HostView, change: Change) -> None:
        del change  # making an existing one does no harm
        pairs = [
            word for directory in self._wanted for word in (f"{directory.mode:o}", directory.path)
        ]
        root_script(view, MAKE, *pairs, doing="making directories")
