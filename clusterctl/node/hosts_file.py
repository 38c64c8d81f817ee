"""Keeps the cluster's names in the container's /etc/hosts, as the controller declared them.

The engine gives every container a file of its own there, made anew from the host's at each start.
It is a mount, so a new file cannot take its place: it is written over.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Set, Tuple

from clusterctl.node.journal import Journal
from clusterctl.node.paths import NodePaths

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
        """Write what was declared, where it is not there. Never raises: names that are missing
        make look-ups slow where name servers are, and stop nothing."""
        try:
            self._follow()
            self._problem = ""
        except (OSError, UnicodeError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._journal.write("names", "failed", self._problem)

    def _follow(self) -> None:
        if not self._declared.exists() or not self._target.exists():
            return
        if self._changed_at() == self._seen:
            return
        now = self._target.read_text("utf-8")
        wanted = with_names(now, self._declared.read_text("utf-8"))
        if wanted != now:
            _overwrite(self._target, wanted)
            self._journal.write("names", "written", str(self._target))
        if not self._switch.exists():
            # Some versions of glibc ask name servers first where the image does not say.
            self._switch.write_text(_FILES_FIRST, "utf-8")
        self._seen = self._changed_at()

    def _changed_at(self) -> Tuple[float, ...]:
        stats = [path.stat() for path in (self._declared, self._target)]
        return tuple(value for s in stats for value in (s.st_mtime_ns, s.st_size, s.st_ino))


def with_names(text: str, declared: str) -> str:
    """A hosts file with the declared lines first. The rest, which the engine took from the host,
    keeps all names that are not declared: Debian has a host's own name on 127.0.1.1."""
    names = {name for line in declared.splitlines() for name in _fields(line)[1:]}
    kept = [left for line in _outside(text.splitlines())
            for left in [_without(line, names)] if left is not None]  # fmt: skip
    block = [_BEGIN, *declared.splitlines(), _END]
    return "\n".join([*block, *kept]) + "\n"


def _outside(lines: List[str]) -> List[str]:
    """Lines that are not of an earlier block of ours."""
    found: List[str] = []
    ours = False
    for line in lines:
        if line == _BEGIN:
            ours = True
        if not ours:
            found.append(line)
        if line == _END:
            ours = False
    return found


def _without(line: str, names: Set[str]) -> Optional[str]:
    """A line without these names; None when it then names nothing."""
    address, *named = _fields(line) or [""]
    left = [name for name in named if name.lower() not in names]
    if left == named:
        return line
    return "\t".join([address, *left]) if left else None


def _fields(line: str) -> List[str]:
    """Address and names, without a comment."""
    return line.partition("#")[0].split()


def _overwrite(path: Path, text: str) -> None:
    """In one write, padded with empty lines to the old length, and only then cut: who reads
    meanwhile finds whole lines, old or new, and so does who reads after we were killed."""
    data = text.encode()
    with path.open("r+b", buffering=0) as file:
        written = file.write(data.ljust(path.stat().st_size, b"\n"))
        if written < len(data):
            raise OSError(f"{path} took {written} of {len(data)} bytes")
        file.truncate(len(data))
