"""Compare the model files of hosts by hash, so that ranks on several hosts load the same bytes.

A file's hash is known from the manifest that a push wrote, or from an earlier run, unless the
file's content or inode has changed since. Known hashes are stored on the host.

Files that are small or have a known hash are compared by hash. Files that would take minutes to
hash are compared by samples of their bytes, which differ in another version of a model and in a
partly written file.
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
from clusterctl.units import MIB

TITLE = "Weights are the same on all hosts"

# Names of files that an engine may read.
READ = (
    *(".safetensors", ".bin", ".gguf", ".pt"),
    *(".json", ".model", ".txt", ".jinja", ".tiktoken", ".py"),
)

# Bytes per host that are hashed while the user waits: 3 to 10 s on a disk fast enough to load a
# model from. On a host that has more to hash, only small files are.
INLINE = 4 << 30

# Largest file, in bytes, that is always hashed as a whole: configuration, tokenizer, adapters
SMALL = 16 << 20

SAMPLES = 16  # MiB of a larger file that are compared without a hash of it

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

    def is_as_in_manifest(self, name: str) -> bool:
        return name in self.known and self.known[name] == self.in_manifest.get(name)

    def learned(self, found: Mapping[str, str]) -> HeldModel:
        """Return a copy with more hashes, by path."""
        return replace(self, known={**self.known, **found})


def kept_file(path: str, directory: str = KEPT) -> str:
    """Path on a host of the file with the hashes of the model in the directory `path`."""
    return f"{directory}/{path.strip('/').replace('/', '@')}"


def look_at(transport: Transport, path: str, *, kept: str = KEPT) -> HeldModel:
    """List the files and known hashes of the directory `path`. Changes nothing, reads no weights.
    Raises what `run_as_root` raises."""
    # Of a snapshot in a Hugging Face cache, the manifest is in the model's cache entry.
    root = path.partition("/snapshots/")[0]
    argv = (*script("look", "held"), path, root, kept_file(path, kept))
    answer = run_as_root(transport, argv, doing=f"reading {path}", timeout=deadlines.HELD_LOOK)
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
    transport: Transport, path: str, files: Mapping[str, HostFile], say: Say, *, samples: int = 0
) -> dict[str, str]:
    """Hash `files` of the directory `path`, or only `samples` MiB of each, and return their sha256
    by path; unreadable files are left out. Raises what `hashes` raises."""
    absolute = {f"{path}/{name}": name for name in files}
    size = samples * MIB * len(files) if samples else _size(files)
    found = hashes(transport, list(absolute), size, samples=samples, say=say)
    return {absolute[name]: hashed.sha256 for name, hashed in found.items()}


def keep(transport: Transport, path: str, held: HeldModel, *, kept: str = KEPT) -> None:
    """Store the known hashes on the host. Raises what `run_as_root` raises."""
    lines = [f"{digest}\t{held.files[name].stamp}\t{name}" for name, digest in held.known.items()]
    file = kept_file(path, kept)
    doing = f"writing {file}"
    argv = (*script("keep"), file)
    run_as_root(transport, argv, doing=doing, timeout=deadlines.HELD_KEEP, lines=lines)


@dataclass(frozen=True)
class DifferingFile:
    """A file on `host` that differs from the one on `other`."""

    host: str
    path: str
    other: str
    recorded: bool  # A manifest shows which is right; else it is only known that they differ


def differing_files(hosts: Mapping[str, HeldModel], head: str) -> list[DifferingFile]:
    """Return every file that differs between hosts, once for each host that has the wrong bytes. A
    manifest decides which bytes are right; without one, the majority does, or `head` if there are
    two hosts. Files that only some hosts have are not reported. Pure."""
    found: list[DifferingFile] = []
    for path in sorted({path for held in hosts.values() for path in held.files}):
        having = {name: held for name, held in hosts.items() if path in held.files}
        # The host with whose file the others are compared.
        known = {name: held.known[path] for name, held in having.items() if path in held.known}
        as_in_manifest = [name for name in known if having[name].is_as_in_manifest(path)]
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


def require_same(
    path: str, hosts: Mapping[str, Transport], *, head: str, fix: Fix, sink: EventSink
) -> None:
    """Compare the model directory `path` of all `hosts`.

    Raises, for all hosts together, RequirementsNotMet for each file that differs from the other
    hosts', and the errors of hosts that could not be compared.
    """
    started, told = time.monotonic(), one_at_a_time(sink)
    told(StageStarted(TITLE, tuple(hosts)))

    def say_on(host: str) -> Say:
        return lambda text: told(StepProgress(host, "weights", text))

    def hashed(transport: Transport) -> HeldModel:
        held = look_at(transport, path)
        now = held.unknown
        if _size(now) > INLINE:
            now = {name: file for name, file in now.items() if file.size <= SMALL}
        if now:
            held = held.learned(hash_now(transport, path, now, say_on(transport.host.name)))
            keep(transport, path, held)
        return held

    held = _on_all(hosts, hashed)
    _require_no_difference(path, held, head, fix)
    if unread := [name for name, each in held.items() if not each.files]:
        told(Note(f"{path} cannot be read on {', '.join(unread)}: not compared"))

    large = {name: file for each in held.values() for name, file in each.unknown.items()}
    if large:

        def sampled(transport: Transport) -> HeldModel:
            found = held[transport.host.name]
            files = {name: file for name, file in found.files.items() if name in large}
            say = say_on(transport.host.name)
            samples = hash_now(transport, path, files, say, samples=SAMPLES)
            right = {name: samples[name] for name in samples if found.is_as_in_manifest(name)}
            return HeldModel(files, samples, right)

        _require_no_difference(path, _on_all(hosts, sampled), head, fix)
        told(
            Note(
                f"{gib(_size(large))} of {path} were compared by samples of {SAMPLES} MiB per "
                f"file; to compare every byte: {fix(head)}"
            )
        )
    told(StageFinished(TITLE, time.monotonic() - started))


def _on_all(
    hosts: Mapping[str, Transport], look: Callable[[Transport], HeldModel]
) -> dict[str, HeldModel]:
    outcomes = fan_out(hosts, look)
    raise_all(failures(outcomes))
    return values(outcomes)


def _require_no_difference(path: str, hosts: Mapping[str, HeldModel], head: str, fix: Fix) -> None:
    raise_all(
        RequirementsNotMet(_sentence(path, one), host=one.host, hint=fix(one.other))
        for one in differing_files(hosts, head)
    )


def _size(files: Mapping[str, HostFile]) -> int:
    return sum(file.size for file in files.values())


def _sentence(path: str, one: DifferingFile) -> str:
    which = "" if one.recorded else "; no manifest says which of them is right"
    return f"{one.path} in {path} differs from the one on {one.other}{which}"
