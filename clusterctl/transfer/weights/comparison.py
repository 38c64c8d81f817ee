"""Compare the model files of hosts by hash, so that ranks on several hosts load the same bytes.

The hash of a file is known from the manifest that a push wrote, or from an earlier look, as long
as neither the file's content nor its inode changed since. Known hashes are stored on the host.

Files that are small or have a known hash are compared before the service starts. Those that would
take minutes to hash are reported as unverified, and hashed on the hosts once the service is up:
`status` and the next `serve` compare them then.
"""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from clusterctl import deadlines
from clusterctl.containers.driver import Say
from clusterctl.containers.meter import gib
from clusterctl.engine.events import (
    EventSink,
    Note,
    StageFinished,
    StageStarted,
    StepProgress,
    one_at_a_time,
)
from clusterctl.errors import RequirementsNotMet, raise_all
from clusterctl.transfer.weights.hashing import hashes
from clusterctl.transfer.weights.on_host import (
    KEPT,
    HostFile,
    HostTree,
    read_trees,
    run_as_root,
    script,
)
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values

TITLE = "Weights are the same on all hosts"

# Names of files that an engine may read.
READ = (
    *(".safetensors", ".bin", ".gguf", ".pt"),
    *(".json", ".model", ".txt", ".jinja", ".tiktoken", ".py"),
)

# Bytes per host that are hashed while the user waits: 3 to 10 s on a disk fast enough to load a
# model from. On a host that has more to hash, only small files are hashed at once.
INLINE = 4 << 30

# Largest file, in bytes, that is always hashed at once: configuration, tokenizer, adapters
SMALL = 16 << 20

Fix = Callable[[str], str]  # host: the command that copies the model from it to the others


@dataclass(frozen=True)
class HeldModel:
    """A model's directory on one host. Paths are relative to it."""

    files: Mapping[str, HostFile]
    known: Mapping[str, str]  # sha256 of files that did not change since they were hashed
    in_manifest: Mapping[str, str]  # sha256 in the manifest, whatever the file's bytes are now

    @property
    def unknown(self) -> dict[str, HostFile]:
        return {path: file for path, file in self.files.items() if path not in self.known}

    def learned(self, found: Mapping[str, str]) -> HeldModel:
        """Return a copy with further hashes, by path."""
        return replace(self, known={**self.known, **found})


def kept_file(path: str, directory: str = KEPT) -> str:
    """Path on a host of the file with the hashes of the model in the directory `path`."""
    return f"{directory}/{path.strip('/').replace('/', '@')}"


def look_at(
    transport: Transport, path: str, *, kept: str = KEPT, timeout: float = deadlines.HELD_LOOK
) -> HeldModel:
    """List the files and known hashes of the directory `path`. Changes nothing, reads no weights.
    Raises as `run_as_root`."""
    # Of a snapshot in a Hugging Face cache, the manifest is in the model's cache entry.
    root = path.partition("/snapshots/")[0]
    argv = (*script("look", "held"), path, root, kept_file(path, kept))
    answer = run_as_root(transport, argv, doing=f"reading {path}", timeout=timeout)
    tree = next(read_trees(answer), HostTree(path, {}))
    files = {
        name: file
        for name, file in tree.files.items()
        if file.size and name.endswith(READ) and name.count("/") < 2 and "/." not in f"/{name}"
    }
    known = {name: digest for name, digest in tree.hashed.items() if name in files}
    listed: dict[str, str] = {}  # sha256 by path below `root`, links followed
    if tree.manifest:
        listed = {file.path: file.sha256 for file in tree.manifest.files}
        for link in tree.manifest.links:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.target))
            if target in listed:
                listed[link.path] = listed[target]
    below = posixpath.relpath(path, root)
    in_manifest = {
        name: listed[whole]
        for name in files
        if (whole := posixpath.normpath(f"{below}/{name}")) in listed
    }
    proven = {
        name: digest
        for name, digest in in_manifest.items()
        if max(files[name].written, files[name].changed) <= tree.sealed
    }
    return HeldModel(files, {**proven, **known}, in_manifest)


def hash_now(
    transport: Transport, path: str, files: Mapping[str, HostFile], say: Say
) -> dict[str, str]:
    """Hash `files` of the directory `path` and return their sha256 by path; unreadable files are
    left out. Raises as `hashes`."""
    absolute = {f"{path}/{name}": name for name in files}
    size = sum(file.size for file in files.values())
    found = hashes(transport, list(absolute), size, say=say)
    return {absolute[name]: hashed.sha256 for name, hashed in found.items()}


def keep(
    transport: Transport, path: str, held: HeldModel, *, hash_rest: bool = False, kept: str = KEPT
) -> None:
    """Store the known hashes on the host. `hash_rest`: also hash the other files there in the
    background, for later runs. Raises as `run_as_root`."""
    lines = [
        f"kept\t{digest}\t{held.files[name].stamp}\t{name}" for name, digest in held.known.items()
    ]
    if hash_rest:
        lines += [f"hash\t{file.stamp}\t{name}" for name, file in held.unknown.items()]
    file = kept_file(path, kept)
    argv = (*script("keep"), file, path)
    run_as_root(transport, argv, doing=f"writing {file}", timeout=deadlines.HELD_KEEP, lines=lines)


@dataclass(frozen=True)
class DifferingFile:
    """A file on `host` that differs from the one on `other`."""

    host: str
    path: str
    other: str
    recorded: bool  # A manifest shows which is right; else it is only known that they differ


def differing_files(hosts: Mapping[str, HeldModel], head: str) -> list[DifferingFile]:
    """Return every file whose bytes differ between hosts, once for each host that has the wrong
    bytes. A manifest decides which bytes are right; without one the majority does, and of two hosts
    `head`. Files that only some hosts have are not reported. Pure."""
    found: list[DifferingFile] = []
    for path in sorted({path for held in hosts.values() for path in held.files}):
        having = {name: held for name, held in hosts.items() if path in held.files}
        # The host with whose file the others are compared.
        known = {name: held.known[path] for name, held in having.items() if path in held.known}
        as_in_manifest = [
            name for name in known if having[name].in_manifest.get(path) == known[name]
        ]
        among = as_in_manifest or list(known) or list(having)
        content = {name: (having[name].files[path].size, known.get(name)) for name in among}
        common = Counter(content.values())
        right = max(among, key=lambda name: (common[content[name]], name == head))
        every = [having[right], *having.values()]
        in_manifest = next(
            (held.in_manifest[path] for held in every if path in held.in_manifest), None
        )
        recorded = known.get(right) == in_manifest
        for name, held in having.items():
            hashed = known.get(name), known.get(right)
            if held.files[path].size != having[right].files[path].size or (
                None not in hashed and hashed[0] != hashed[1]
            ):
                found.append(DifferingFile(name, path, right, recorded))
    return found


@dataclass(frozen=True)
class ComparedWeights:
    """The model directory `path`, with its files on every host of a service."""

    path: str
    hosts: Mapping[str, Transport]
    held: Mapping[str, HeldModel]

    @property
    def unverified(self) -> tuple[str, ...]:
        """Sentences about files that could not be compared."""
        unread = [name for name, held in self.held.items() if not held.files]
        rest = {name: _size(held.unknown) for name, held in self.held.items() if held.unknown}
        found = []
        if unread:
            found.append(f"{self.path} cannot be read on {', '.join(unread)}: not compared")
        if rest:
            found.append(
                f"not compared yet: {gib(max(rest.values()))} of {self.path} on {', '.join(rest)}, "
                "which take long to hash; hosts do it once the service is up, and "
                "clusterctl status reports the result"
            )
        return tuple(found)

    def hash_rest(self) -> None:
        """Have the hosts hash the remaining files in the background. Raises the errors of all
        hosts."""

        def begin(transport: Transport) -> None:
            keep(transport, self.path, self.held[transport.host.name], hash_rest=True)

        rest = {name: self.hosts[name] for name, held in self.held.items() if held.unknown}
        raise_all(failures(fan_out(rest, begin)))


def require_same(
    path: str, hosts: Mapping[str, Transport], *, head: str, fix: Fix, sink: EventSink
) -> ComparedWeights:
    """Compare the model directory `path` of all `hosts`.

    Raises, for all hosts together, RequirementsNotMet for each file that differs from the other
    hosts', and the errors of hosts that could not be compared.
    """
    started, told = time.monotonic(), one_at_a_time(sink)
    told(StageStarted(TITLE, tuple(hosts)))

    def on_host(transport: Transport) -> HeldModel:
        held = look_at(transport, path)
        now = held.unknown
        if _size(now) > INLINE:
            now = {name: file for name, file in now.items() if file.size <= SMALL}
        if not now:
            return held
        name = transport.host.name
        found = hash_now(transport, path, now, lambda far: told(StepProgress(name, "weights", far)))
        held = held.learned(found)
        keep(transport, path, held)
        return held

    outcomes = fan_out(hosts, on_host)
    raise_all(failures(outcomes))
    weights = ComparedWeights(path, hosts, values(outcomes))
    raise_all(
        RequirementsNotMet(_sentence(path, one), host=one.host, hint=fix(one.other))
        for one in differing_files(weights.held, head)
    )
    for sentence in weights.unverified:
        told(Note(sentence))
    told(StageFinished(TITLE, time.monotonic() - started))
    return weights


def told_apart(path: str, held: Mapping[str, HeldModel], head: str) -> dict[str, tuple[str, ...]]:
    """Return sentences for `status`, by host, about files that differ from the other hosts'."""
    found: dict[str, tuple[str, ...]] = {}
    for one in differing_files(held, head):
        found[one.host] = (*found.get(one.host, ()), _sentence(path, one))
    return found


def _size(files: Mapping[str, HostFile]) -> int:
    return sum(file.size for file in files.values())


def _sentence(path: str, one: DifferingFile) -> str:
    which = "" if one.recorded else "; no manifest says which of them is right"
    return f"{one.path} in {path} differs from the one on {one.other}{which}"
