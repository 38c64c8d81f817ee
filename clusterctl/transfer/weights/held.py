"""Hashes of one model's files on hosts: ranks that load different weights produce nonsense.

The hash of a file is known from the manifest that a push wrote, or from an earlier look, as long
as neither the file's content nor its inode changed since. Known hashes are stored on the host.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from clusterctl import deadlines
from clusterctl.containers.driver import Say
from clusterctl.errors import CommandFailed
from clusterctl.transfer.content import is_digest
from clusterctl.transfer.weights.hashing import hashes, sums
from clusterctl.transfer.weights.manifest import parse
from clusterctl.transfer.weights.on_host import KEPT
from clusterctl.transport.base import Transport


@dataclass(frozen=True)
class HeldFile:
    """A file of a model's directory."""

    size: int  # Bytes
    # Inode, size, time of the last write and of the last change: differs after any change.
    stamp: str


@dataclass(frozen=True)
class HeldModel:
    """A model's directory on one host. Paths are relative to it."""

    files: Mapping[str, HeldFile]
    known: Mapping[str, str]  # sha256 of files that did not change since they were hashed
    promised: Mapping[str, str]  # sha256 in the manifest, whatever the file's bytes are now

    @property
    def unknown(self) -> dict[str, HeldFile]:
        return {path: file for path, file in self.files.items() if path not in self.known}

    def learned(self, found: Mapping[str, str]) -> HeldModel:
        """Return a copy with further hashes, by path."""
        return HeldModel(self.files, {**self.known, **found}, self.promised)


def kept_file(path: str, directory: str = KEPT) -> str:
    """Path on a host of the file with the hashes of the model in the directory `path`."""
    return f"{directory}/{path.strip('/').replace('/', '@')}"


def look_at(
    transport: Transport, path: str, *, kept: str = KEPT, timeout: float = deadlines.HELD_LOOK
) -> HeldModel:
    """List the files and known hashes of the directory `path`. Changes nothing, reads no weights.

    Raises ConnectionFailed, CommandTimedOut, and CommandFailed when no shell can be run.
    """
    argv = ("sh", "-c", _script("held.sh"), "held", path, _root(path), kept_file(path, kept))
    result = transport.run(argv, sudo=True, timeout=timeout)
    if not result.ok:
        raise CommandFailed(
            f"{path} could not be read", host=transport.host.name, detail=result.last_lines()
        )
    return read_answer(result.stdout, path)


def hash_now(
    transport: Transport, path: str, files: Mapping[str, HeldFile], say: Say
) -> dict[str, str]:
    """Hash `files` of the directory `path` and return their sha256 by path; unreadable files are
    left out. Raises as `hashes`."""
    absolute = {f"{path}/{name}": name for name in files}
    size = sum(file.size for file in files.values())
    found = sums(hashes(transport, list(absolute), size, say=say))
    return {absolute[name]: digest for name, digest in found.items()}


def keep(
    transport: Transport, path: str, held: HeldModel, *, hash_rest: bool = False, kept: str = KEPT
) -> None:
    """Store the known hashes on the host. `hash_rest`: also hash the other files there in the
    background, for later runs. Raises as `look_at`."""
    lines = [
        f"kept\t{digest}\t{held.files[name].stamp}\t{name}" for name, digest in held.known.items()
    ]
    if hash_rest:
        lines += [f"hash\t{file.stamp}\t{name}" for name, file in held.unknown.items()]
    text = "".join(f"{line}\n" for line in lines)
    argv = ("sh", "-c", _script("keep.sh"), "keep", kept_file(path, kept), path)
    result = transport.run(argv, stdin=text.encode(), sudo=True, timeout=deadlines.HELD_KEEP)
    if not result.ok:
        raise CommandFailed(
            f"{kept_file(path, kept)} could not be written",
            host=transport.host.name,
            detail=result.last_lines(),
        )


def read_answer(text: str, path: str) -> HeldModel:
    """Parse the output of held.sh for the directory `path`; a truncated line is left out. Pure."""
    files: dict[str, HeldFile] = {}
    changed: dict[str, str] = {}
    kept: dict[str, str] = {}
    sealed, manifest = "", []
    for line in text.splitlines():
        match line.split("\t"):
            case ["file", stamp, later, size, name] if size.isdigit():
                files[name], changed[name] = HeldFile(int(size), stamp), later
            case ["sealed", moment]:
                sealed = moment
            case ["kept", digest, stamp, name] if is_digest(digest):
                if name in files and files[name].stamp == stamp:
                    kept[name] = digest
            case [first, *_] if first.startswith("|"):
                manifest.append(line[1:])
    promised = _promised("\n".join(manifest), posixpath.relpath(path, _root(path)))
    # Both are times of one host's clock, in UTC and to the nanosecond: they compare as text.
    proven = {
        name: promised[name] for name in files if name in promised and changed[name] <= sealed
    }
    return HeldModel(
        files, {**proven, **kept}, {name: promised[name] for name in files if name in promised}
    )


def _root(path: str) -> str:
    """Directory of the manifest: for a snapshot in a Hugging Face cache, the model's cache
    entry."""
    return path.partition("/snapshots/")[0]


def _script(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _promised(text: str, below: str) -> dict[str, str]:
    """Return {path: sha256} of the manifest `text` for files below its directory `below`, links
    followed; empty without a manifest that this version can parse."""
    try:
        manifest = parse(text) if text else None
    except ValueError:
        return {}
    if manifest is None:
        return {}
    found = {file.path: file.sha256 for file in manifest.files}
    for link in manifest.links:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.target))
        if target in found:
            found[link.path] = found[target]
    if below == ".":
        return found
    start = f"{below}/"
    return {path[len(start) :]: found[path] for path in found if path.startswith(start)}


@dataclass(frozen=True)
class DifferingFile:
    """A file on `host` that differs from the one on `other`."""

    host: str
    path: str
    other: str
    recorded: bool  # A manifest shows which is right; else it is only known that they differ


def differing_files(hosts: Mapping[str, HeldModel], head: str) -> list[DifferingFile]:
    """Return every file whose bytes differ between hosts, for each host that has the wrong one:
    where no manifest decides, the minority, and of two hosts the one that is not `head`. Files that
    only some hosts have are not reported. Pure."""
    found: list[DifferingFile] = []
    for path in sorted({path for held in hosts.values() for path in held.files}):
        having = {name: held for name, held in hosts.items() if path in held.files}
        right = _right_host(path, having, head)
        every = [having[right], *having.values()]
        promised = next((held.promised[path] for held in every if path in held.promised), None)
        recorded = having[right].known.get(path) == promised
        for name, held in having.items():
            sizes = held.files[path].size, having[right].files[path].size
            hashes_ = held.known.get(path), having[right].known.get(path)
            if sizes[0] != sizes[1] or (None not in hashes_ and hashes_[0] != hashes_[1]):
                found.append(DifferingFile(name, path, right, recorded))
    return found


def _right_host(path: str, hosts: Mapping[str, HeldModel], head: str) -> str:
    """Return the host with whose file the others are compared."""
    known = {name: held.known[path] for name, held in hosts.items() if path in held.known}
    as_promised = [name for name in known if hosts[name].promised.get(path) == known[name]]
    among = as_promised or list(known) or list(hosts)
    content = {name: (hosts[name].files[path].size, known.get(name)) for name in among}
    common = Counter(content.values())
    return max(among, key=lambda name: (common[content[name]], name == head))
