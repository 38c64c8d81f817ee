"""Which models hosts have: query a host in one round trip, and parse its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Literal

from clusterctl import deadlines
from clusterctl.models.probe import reach
from clusterctl.transfer.content import is_digest
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, parse
from clusterctl.transport.base import Transport

# Minutes without a write, after which a staged directory counts as abandoned. Runs of one cluster
# exclude each other anyway; one of another cluster on the same host writes all the time.
IDLE_AFTER = 60

SHARED_FROM = 2**20  # Bytes from which equal files of two models are one on disk

# Directory on a host with one file of hashes per model. Only root can read it, no container.
KEPT = "/var/lib/clusterctl/weights"

# Below the models directory: staging directories. On the same file system, so that a complete one
# only has to be renamed, and where neither vLLM nor a user looks for a model.
INCOMING = ".clusterctl-incoming"

SLASH = "@"  # Stands for `/` in the name of a staging directory; no hub allows it in a model's name


@dataclass(frozen=True)
class HostFile:
    """A file as its host reports it. Times are text in UTC, to the nanosecond, and compare as text
    within one host."""

    size: int  # Bytes
    stamp: str = ""  # Inode, size and both times: differs after any change
    written: str = ""  # Time of the last write
    changed: str = ""  # Time of the last change of any kind


@dataclass(frozen=True)
class HostTree:
    """One model directory of a host."""

    path: str  # Below the models directory
    files: Mapping[str, HostFile]
    # Symbolic links of a Hugging Face cache entry: path to target.
    links: Mapping[str, str] = field(default_factory=dict)
    manifest: Manifest | None = None
    sealed: str = ""  # When the manifest was written: after all files
    # sha256 of files that were hashed on the host and did not change since.
    hashed: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(seen.size for seen in self.files.values())

    @cached_property
    def lacking(self) -> tuple[str, ...]:
        """Paths of the manifest's files and links that are missing or were modified since."""
        if self.manifest is None:
            return ()
        files = [file.path for file in self.manifest.files if not self.holds(file)]
        links = [each for each in self.manifest.links if self.links.get(each.path) != each.target]
        return (*files, *(link.path for link in links))

    def holds(self, file: WeightFile) -> bool:
        """Whether this file of the tree's manifest is unchanged: same size, not modified since the
        manifest, and, if it was hashed, the same sha256 (a write may set the time back)."""
        seen = self.files.get(file.path)
        if seen is None or seen.size != file.size or seen.written > self.sealed:
            return False
        return self.hashed.get(file.path, file.sha256) == file.sha256


@dataclass(frozen=True)
class HostModels:
    """The models directory of one host."""

    directory: str  # Absolute
    free: int  # Bytes that can be written
    trees: tuple[HostTree, ...] = ()
    # Staging directories: the name of each below INCOMING, and the bytes that it takes up.
    incoming: Mapping[str, int] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()  # Staging directories without a write for IDLE_AFTER
    read_only: str | None = None  # The directory that cannot be written to

    def tree(self, path: str) -> HostTree | None:
        return next((tree for tree in self.trees if tree.path == path), None)

    def contents(self, name: str) -> Mapping[str, str]:
        """Return {sha256: absolute path} of unchanged files in manifests: all of model `name`, and
        only large ones of other models, since small files may be edited in place, and a hard link
        would change both models."""
        return {
            file.sha256: f"{self.directory}/{tree.path}/{file.path}"
            for tree in sorted(self.trees, key=lambda each: each.path == name)
            if tree.manifest is not None
            for file in tree.manifest.files
            if tree.holds(file) and (tree.path == name or file.size >= SHARED_FROM)
        }


def model_staged_in(name: str) -> str:
    """The model whose files are, or were, staged in the directory `name` below INCOMING."""
    return name.removesuffix(".old").rpartition(".")[0].replace(SLASH, "/")


def script(name: str, called: str = "") -> tuple[str, ...]:
    """Return the command that runs `name`.sh of this package; arguments may be added. `called`: the
    script's `$0`, if one script does several things."""
    folder = resources.files(__package__)
    parts = [folder.joinpath(f"{part}.sh").read_text(encoding="utf-8") for part in ("enter", name)]
    return ("sh", "-c", "".join((reach(), *parts)), called or name)


def run_as_root(
    transport: Transport,
    argv: Sequence[str],
    *,
    doing: str,
    timeout: float,
    lines: Iterable[str] = (),
) -> str:
    """Run a command with `lines` on its stdin and return its output. `doing`: the work, for errors.

    Raises ConnectionFailed, CommandTimedOut, and CommandFailed for a non-zero exit status.
    """
    stdin = "".join(f"{line}\n" for line in lines).encode()
    result = transport.run(argv, stdin=stdin, sudo=True, timeout=timeout)
    return result.output(doing, transport.host.name)


def look_at_models(transport: Transport, directory: str, *, kept: str = KEPT) -> HostModels:
    """List the models under `directory`. Changes nothing. Raises what `run_as_root` raises."""
    argv = (*script("look"), directory, str(IDLE_AFTER), kept)
    answer = run_as_root(
        transport, argv, doing=f"reading {directory}", timeout=deadlines.MODELS_LOOK
    )
    free, read_only, incoming, idle = 0, None, {}, set()
    for line in answer.splitlines():
        match line.split("\t"):
            case ["free", kib]:
                free = int(kib) * 1024
            case ["readonly", path]:
                read_only = path
            case ["incoming", name, kib, state]:
                incoming[name] = int(kib) * 1024
                if state == "idle":
                    idle.add(name)
    trees = tuple(read_trees(answer))
    return HostModels(directory, free, trees, incoming, frozenset(idle), read_only)


def read_trees(answer: str) -> Iterator[HostTree]:
    """Parse the models in the output of look.sh; a truncated one is left out. Pure."""
    path = ""
    for line in answer.splitlines():
        match line.split("\t"):
            case ["tree", path]:
                files: dict[str, HostFile] = {}
                links: dict[str, str] = {}
                hashed: dict[str, str] = {}
                sealed, text = "", ""
            case _ if not path:
                pass
            case ["file", stamp, written, changed, size, name] if size.isdigit():
                found = HostFile(int(size), stamp, written, changed)
                files[name.removeprefix("./")] = found
            case ["link", name, target]:
                links[name.removeprefix("./")] = target
            case ["kept", digest, stamp, name] if is_digest(digest):
                if name in files and files[name].stamp == stamp:
                    hashed[name] = digest
            case ["sealed", sealed]:
                pass
            case [first, *_] if first.startswith("|"):
                text += f"{line[1:]}\n"
            case ["end"]:
                manifest = None
                with suppress(ValueError):  # a format that this version does not read
                    manifest = parse(text) if text else None
                yield HostTree(path, files, links, manifest, sealed, hashed)
                path = ""


# complete: every file is as the manifest says. unverified: another program put the files there, and
# there is no manifest. partial: files of the manifest are missing or were written to since.
# differs: complete, but not the version that most hosts have. coming: staged, not yet complete.
State = Literal["complete", "unverified", "partial", "differs", "coming", "absent"]


@dataclass(frozen=True)
class Holding:
    """One model, and its state on every host."""

    name: str  # Of the directory, below the models directory
    size: int  # Bytes, of the largest
    origin: str  # Its source, such as hf:Qwen/Qwen3-8B@<commit>; empty when unknown
    hosts: Mapping[str, State]  # Every host that answered, by name


def holdings(hosts: Mapping[str, HostModels]) -> list[Holding]:
    """Return all models that are on a host, or on the way to one, sorted by name."""
    names = {tree.path for found in hosts.values() for tree in found.trees}
    names |= {model_staged_in(way) for found in hosts.values() for way in found.incoming}
    rows = []
    for name in sorted(names, key=str.casefold):
        trees = [tree for found in hosts.values() if (tree := found.tree(name))]
        manifests = [tree.manifest for tree in trees if tree.manifest]
        usual = Counter(manifest.identity for manifest in manifests).most_common(1)
        states = {
            host: _state(name, found, usual[0][0] if usual else None)
            for host, found in hosts.items()
        }
        size = max((tree.size for tree in trees), default=0)
        origin = next((manifest.origin for manifest in manifests if manifest.origin), "")
        rows.append(Holding(name, size, origin, states))
    return rows


def _state(name: str, found: HostModels, reference: str | None) -> State:
    """`reference`: the identity of the version that most hosts have."""
    tree = found.tree(name)
    if tree is None:
        return "coming" if any(model_staged_in(way) == name for way in found.incoming) else "absent"
    if tree.manifest is None:
        return "unverified"
    if tree.lacking:
        return "partial"
    return "complete" if tree.manifest.identity == reference else "differs"
