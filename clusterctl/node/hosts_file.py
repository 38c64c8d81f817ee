"""Keeps the cluster's names in the container's /etc/hosts, as the controller declared them.

The container engine gives every container its own /etc/hosts, created from the host's at each
start. It is a mount, so it cannot be replaced by a rename: it is overwritten in place.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Tuple

from clusterctl.node.files import Journal, NodePaths

_BEGIN, _END = "# clusterctl: begin", "# clusterctl: end"
_FILES_FIRST = "hosts: files dns\n"


class HostsFile:
    def __init__(self, paths: NodePaths, journal: Journal) -> None:
        self._declared = paths.declared_hosts
        self._target = paths.etc / "hosts"
        self._switch = paths.etc / "nsswitch.conf"
        self._journal = journal
        self._seen: Optional[Tuple[float, ...]] = None
        self._problem = ""

    def tick(self) -> None:
        """Write the declared names into /etc/hosts unless they are already in it.

        Never raises: without them names still resolve, but wait for slow name servers.
        """
        try:
            if (
                self._declared.exists()
                and self._target.exists()
                and self._changed_at() != self._seen
            ):
                now = self._target.read_text("utf-8")
                wanted = with_names(now, self._declared.read_text("utf-8"))
                if wanted != now:
                    _overwrite(self._target, wanted)
                    self._journal.write("names", "written", str(self._target))
                if not self._switch.exists():
                    # Some versions of glibc ask name servers first without nsswitch.conf.
                    self._switch.write_text(_FILES_FIRST, "utf-8")
                self._seen = self._changed_at()
            self._problem = ""
        except (OSError, UnicodeError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._journal.write("names", "failed", self._problem)

    def _changed_at(self) -> Tuple[float, ...]:
        stats = [path.stat() for path in (self._declared, self._target)]
        return tuple(value for s in stats for value in (s.st_mtime_ns, s.st_size, s.st_ino))


def with_names(text: str, declared: str) -> str:
    """Return the hosts file `text` with the declared lines first.

    The declared names are removed from the other lines, which the engine copied from the host:
    Debian has a host's own name on 127.0.1.1.
    """
    names = {name for line in declared.splitlines() for name in _fields(line)[1:]}
    kept: List[str] = []
    ours = False  # Inside the block that an earlier run wrote
    for line in text.splitlines():
        ours = ours or line == _BEGIN
        if not ours:
            address, *named = _fields(line) or [""]
            left = [name for name in named if name.lower() not in names]
            if left == named:
                kept.append(line)
            elif left:
                kept.append("\t".join([address, *left]))
        ours = ours and line != _END
    return "\n".join([_BEGIN, *declared.splitlines(), _END, *kept]) + "\n"


def _fields(line: str) -> List[str]:
    """Return the address and names of a line, without its comment."""
    return line.partition("#")[0].split()


def _overwrite(path: Path, text: str) -> None:
    """Write in one call, padded with empty lines to the old length, and truncate afterwards.

    Concurrent readers then see whole lines, old or new, even if this process is killed in between.
    """
    data = text.encode()
    with path.open("r+b", buffering=0) as file:
        written = file.write(data.ljust(path.stat().st_size, b"\n"))
        if written < len(data):
            raise OSError(f"{path} took {written} of {len(data)} bytes")
        file.truncate(len(data))
