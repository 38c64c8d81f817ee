"""Files and directories on a host: steps that write and remove them, records of what clusterctl
installed, and how all steps run a fixed shell script as root."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import CommandFailed
from clusterctl.node.documents import (
    PRIVATE,
    cache_dir,
    declared_dir,
    log_dir,
    measured_dir,
    run_dir,
)
from clusterctl.transport.base import ABSENT


def root_script(
    view: HostView,
    script: str,
    *arguments: str,
    doing: str,
    stdin: bytes = b"",
    timeout: float = deadlines.COMMAND,
) -> str:
    """Return the stdout of the POSIX `script`, which gets data as "$1", "$2", ... `doing` describes
    it in errors, such as "making x".

    Raises CommandFailed with the script's last lines if its exit status is not 0.
    """
    argv = ["sh", "-c", script, "clusterctl", *arguments]
    result = view.transport.run(argv, stdin=stdin, sudo=True, timeout=timeout)
    return result.output(doing, view.host.name)


def line_per_path(
    view: HostView,
    script: str,
    paths: Sequence[str],
    *,
    doing: str,
    timeout: float = deadlines.COMMAND,
) -> list[str]:
    """Return the line that the script prints for each path. Raises CommandFailed as `root_script`,
    and if a host answers with more or fewer lines."""
    lines = root_script(view, script, *paths, doing=doing, timeout=timeout).splitlines()
    if len(lines) != len(paths):
        why = f"{doing} failed: {len(lines)} lines came for {len(paths)} paths"
        raise CommandFailed(why, host=view.host.name, detail="\n".join(lines[-20:]))
    return lines


LOOK_AT_DIRECTORIES = """\
for path in "$@"; do
  [ -d "$path" ] && stat -L -c '%a %u' "$path" || echo none
done
"""

MAKE_DIRECTORIES = """\
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

    Only root may enter: the configuration has secrets, logs have users' requests, and the node
    container could create a set-user-ID program, which no user of the host may reach.
    """
    return (
        Directory("/etc/clusterctl"),
        Directory(f"/etc/clusterctl/{cluster}", 0o700),
        Directory(f"/etc/clusterctl/{cluster}/services", 0o700),
        Directory(f"/etc/clusterctl/{cluster}/members", 0o700),
        Directory("/var/log/clusterctl", 0o700),
        Directory(log_dir(cluster), 0o700),
        # Made by the engine after a reboot, with this mode; the supervisor then closes its own.
        Directory("/run/clusterctl"),
        Directory(run_dir(cluster), 0o700),
        Directory(PRIVATE, 0o700),
        Directory(f"{PRIVATE}/caches", 0o700),
        Directory(cache_dir(cluster), 0o700),
        Directory(f"{PRIVATE}/measured", 0o700),
        Directory(measured_dir(cluster), 0o700),
        Directory(f"{PRIVATE}/declared", 0o700),
        Directory(declared_dir(cluster), 0o700),
        Directory(f"{declared_dir(cluster)}/services", 0o700),
        Directory(f"{declared_dir(cluster)}/members", 0o700),
        Directory("/opt/clusterctl"),
        Directory(f"/opt/clusterctl/{version}"),
    )


def make_directories(view: HostView, *paths: str) -> None:
    """Create world-readable directories, with their parents."""
    words = [word for path in paths for word in ("755", path)]
    root_script(view, MAKE_DIRECTORIES, *words, doing=f"making {', '.join(paths)}")


def make_private(view: HostView, path: str) -> None:
    """Create a directory below PRIVATE that only root may enter, with its parents."""
    below = PurePosixPath(path)
    paths = [below, *(parent for parent in below.parents if parent.is_relative_to(PRIVATE))]
    words = [word for each in reversed(paths) for word in ("700", str(each))]
    root_script(view, MAKE_DIRECTORIES, *words, doing=f"making {path}")


class DirectoriesPresent:
    """Step: each directory exists with its mode, owned by root."""

    def __init__(self, wanted: Sequence[Directory], title: str = "directories") -> None:
        self._wanted = tuple(wanted)
        self.title = title

    def check(self, view: HostView) -> Change | None:
        paths = [directory.path for directory in self._wanted]
        found = line_per_path(view, LOOK_AT_DIRECTORIES, paths, doing="looking at directories")
        wrong = {
            directory.path: state
            for directory, state in zip(self._wanted, found, strict=True)
            if state != f"{directory.mode:o} 0"
        }
        # A parent that is made with its child goes without saying: the lock makes one between a
        # plan and the bootstrap that compares itself with it.
        made = [
            path
            for path, state in wrong.items()
            if state != "none" or not any(other.startswith(f"{path}/") for other in wrong)
        ]
        return Change(f"create {', '.join(made)}") if made else None

    def apply(self, view: HostView, _change: Change) -> None:
        # Making an existing one does no harm
        pairs = [
            word for directory in self._wanted for word in (f"{directory.mode:o}", directory.path)
        ]
        root_script(view, MAKE_DIRECTORIES, *pairs, doing="making directories")


LOOK_AT_FILES = """\
for path in "$@"; do
  if [ -f "$path" ]
  then printf '%s %s\\n' "$(stat -L -c %a "$path")" "$(sha256sum <"$path" | cut -c1-64)"
  else echo none
  fi
done
"""


@dataclass(frozen=True)
class RemoteFile:
    """The content and mode that a file should have. Its directory must exist."""

    path: str
    data: bytes = field(repr=False)
    mode: int = 0o644

    @property
    def seal(self) -> str:
        """The line that `LOOK_AT_FILES` prints if the file is as it should be."""
        return f"{self.mode:o} {hashlib.sha256(self.data).hexdigest()}"


FilesFor = Callable[[HostView], Sequence[RemoteFile]]

# Whether writing the file restarts something; arguments: the wanted file, its current content
Disrupts = Callable[[RemoteFile, bytes], bool]


class FilesPresent:
    """Step: each file has its content and mode. Other files are not touched."""

    def __init__(
        self, title: str, files_for: FilesFor, *, disrupts: Disrupts | None = None
    ) -> None:
        self.title = title
        self._files_for = files_for
        self._disrupts = disrupts

    def check(self, view: HostView) -> Change | None:
        differing = [file for file, _ in self._differing(view)]
        if not differing:
            return None
        names = ", ".join(PurePosixPath(file.path).name for file in differing)
        return Change(f"write {names}", disruptive=self._restarts(view, differing))

    def apply(self, view: HostView, _change: Change) -> None:
        for file, before in self._differing(view):
            view.transport.put(file.data, file.path, mode=file.mode, sudo=True, before=before)

    def _restarts(self, view: HostView, files: Sequence[RemoteFile]) -> bool:
        if self._disrupts is None:
            return False
        now = ((file, view.transport.read_file(file.path) or b"") for file in files)
        return any(self._disrupts(file, content) for file, content in now)

    def _differing(self, view: HostView) -> list[tuple[RemoteFile, str]]:
        """Return the files that differ, with the digests of their current content."""
        wanted = self._files_for(view)
        paths = [file.path for file in wanted]
        seals = line_per_path(view, LOOK_AT_FILES, paths, doing="looking at files")
        return [
            (file, ABSENT if seal == "none" else seal.partition(" ")[2])
            for file, seal in zip(wanted, seals, strict=True)
            if seal != file.seal
        ]


# Directories below PRIVATE
OWN_FILES = (
    "blobs",
    "caches",
    "declared",
    "digests",
    "measured",
    "packages",
    "saved",
    "tables",
    "weights",
)

OURS = (
    "/etc/clusterctl",
    "/run/clusterctl",
    "/var/log/clusterctl",
    *(f"{PRIVATE}/{name}" for name in OWN_FILES),
    "/opt/clusterctl",
)

LOOK_FOR_PATHS = """\
for path in "$@"; do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; fi; done
"""

LOOK_BESIDE = """\
for other in "${1%/*}"/*; do
  if [ -d "$other" ] && [ "$other" != "$1" ]; then echo "${other##*/}"; fi
done
"""

# Also remove the parent directories of ours, once nothing of another cluster is in them.
REMOVE = """\
set -e
for path in "$@"; do
  rm -rf -- "$path"
  while path=${path%/*}; do
    case $path in */clusterctl/* | */clusterctl) rmdir "$path" 2>/dev/null || break;;
    *) break;; esac
  done
done
"""


class PathsAbsent:
    """Step: each path is removed recursively. Only clusterctl's own directories are allowed.

    `last_of`: this cluster's directory, if clusters share the paths; nothing is removed while
    another cluster has a directory next to it.
    """

    def __init__(
        self,
        title: str,
        paths: Sequence[str],
        *,
        last_of: str | None = None,
        within: Sequence[str] = OURS,
    ) -> None:
        for path in map(PurePosixPath, paths):
            if ".." in path.parts or not any(path.is_relative_to(base) for base in within):
                raise ValueError(f"{path} does not belong to clusterctl")
        self.title = title
        self._paths = tuple(paths)
        self._last_of = last_of

    def check(self, view: HostView) -> Change | None:
        if self._last_of and beside(view, self._last_of):
            return None
        found = root_script(view, LOOK_FOR_PATHS, *self._paths, doing="looking at files")
        return Change(f"remove {', '.join(found.splitlines())}") if found.strip() else None

    def apply(self, view: HostView, _change: Change) -> None:
        root_script(
            view, REMOVE, *self._paths, doing="removing files", timeout=deadlines.PACKAGE_FILES
        )


def beside(view: HostView, own: str) -> list[str]:
    """Return other clusters' directories next to `own`, this cluster's, which need not exist."""
    return root_script(view, LOOK_BESIDE, own, doing="looking for other clusters").split()


# Records, with one name per line, of what clusterctl installed: `down --purge` removes it again.
ENGINE_PACKAGES = f"{PRIVATE}/engine-packages"  # packages installed with the engine
IMAGES = f"{PRIVATE}/images"  # references of images that clusterctl put there

REMEMBER = """\
set -e; umask 077
mkdir -p "${1%/*}"; touch "$1"
sort -u - "$1" >"$1.new"; mv "$1.new" "$1"
"""

FORGET = """\
[ -f "$1" ] || exit 0
grep -vxF -- "$2" "$1" >"$1.new"
if [ -s "$1.new" ]; then mv "$1.new" "$1"
else rm -f "$1" "$1.new"; rmdir "${1%/*}" 2>/dev/null; fi
exit 0
"""


def record_installed(view: HostView, names: Sequence[str], record: str) -> None:
    """Add names to the record. Call it before installing them, so that an interrupted installation
    can be removed."""
    text = "".join(f"{name}\n" for name in names)
    root_script(view, REMEMBER, record, stdin=text.encode(), doing=f"writing {record}")


def installed_by_us(view: HostView, record: str) -> list[str]:
    """Return the names in the record."""
    return (view.transport.read_file(record) or b"").decode().split()


def forget_installed(view: HostView, name: str, record: str) -> None:
    """Remove a name from the record: if it is installed again later, then not by clusterctl."""
    root_script(view, FORGET, record, name, doing=f"writing {record}")
