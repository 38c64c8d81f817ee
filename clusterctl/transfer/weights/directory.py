"""A model's directory on this machine: list its files, check that vLLM could load them, hash them,
and serve them as blobs."""

from __future__ import annotations

import json
import os
import shlex
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.errors import (
    ClusterctlError,
    Interrupted,
    RequirementsNotMet,
    StepFailed,
    UsageError,
    raise_all,
)
from clusterctl.models.catalogue import by_directory
from clusterctl.transfer.content import CHUNK, Blob
from clusterctl.transfer.weights.hashing import HashCache, Stamp, hash_file
from clusterctl.transfer.weights.manifest import (
    Manifest,
    WeightFile,
    WeightLink,
    in_order,
    plain_mode,
)

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")
NOT_WEIGHTS = frozenset({"training_args.bin"})
RANDOM_WEIGHTS = "RANDOM_WEIGHTS"  # A file of this name marks weights as omitted on purpose

# Files that git, hf and modelscope leave in a downloaded directory. vLLM reads none of them.
LEFT_OUT = frozenset({".git", ".cache", "__pycache__", "._____temp", ".mv", ".msc", ".DS_Store"})

_UNFINISHED = (".part", ".incomplete", ".aria2", ".lock")
_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class TreeFile:
    """One file to send: `path` below the directory, `source` on this machine."""

    path: str
    source: Path
    size: int
    mode: int


@dataclass(frozen=True)
class Tree:
    """A model's directory as listed, before any file is hashed."""

    name: str
    files: tuple[TreeFile, ...]
    links: tuple[WeightLink, ...] = ()
    origin: str = ""


def read_tree(directory: Path, name: str | None = None) -> Tree:
    """List the files of a plain directory, or of the newest snapshot of a Hugging Face cache entry.

    Links in a plain directory are followed, outside it only to weights; a cache entry keeps its
    links (from snapshots to blobs). `name` is the name on hosts; default: the directory's name.
    Raises UsageError when the directory does not exist, cannot be read or holds a file that cannot
    be sent.
    """
    directory = directory.expanduser()
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise UsageError(
            f"{directory} {what}",
            hint="name a directory on this machine; for a model on the Hub: clusterctl model "
            "pull ORGANIZATION/NAME",
        )
    directory = directory.resolve()
    if (directory / "snapshots").is_dir():
        return _cache_entry(directory, name)
    own = directory
    if directory.parent.name == "snapshots":
        own = directory.parent.parent  # whose blobs the snapshot's links lead to
        name = name or own.name.rpartition("--")[2]
    files = tuple(_files(directory))
    raise_all(_leading_out(files, directory, own))
    return Tree(name or directory.name, files)


def _leading_out(files: Iterable[TreeFile], directory: Path, own: Path) -> Iterator[UsageError]:
    """Yield an error for each file of `directory` that is linked from outside `own`, except
    weights, which some keep elsewhere: a model's author could otherwise read any file of this user.
    """
    for file in files:
        if not file.source.is_relative_to(own) and not file.source.name.endswith(WEIGHT_SUFFIXES):
            yield UsageError(
                f"{file.path} is a link to {file.source}, outside the model, so it is not sent",
                hint="if it belongs to the model, copy it: "
                + shlex.join(
                    ("cp", "--remove-destination", str(file.source), str(directory / file.path))
                ),
            )


def _cache_entry(entry: Path, name: str | None) -> Tree:
    """Read `models--ORG--NAME`: the snapshot that refs/main names, else the newest, and its blobs.

    Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
    """
    main = entry / "refs" / "main"
    snapshot = entry / "snapshots" / main.read_text().strip() if main.is_file() else None
    if snapshot is None or not snapshot.is_dir():
        snapshots = [path for path in (entry / "snapshots").iterdir() if path.is_dir()]
        if not snapshots:
            raise UsageError(f"{entry} has no snapshot: nothing was downloaded into it")
        snapshot = max(snapshots, key=lambda path: path.stat().st_mtime)
    links: list[WeightLink] = []
    files: dict[str, TreeFile] = {}
    for file in _files(snapshot):
        path = snapshot / file.path
        real = path.resolve()
        if not real.is_relative_to(entry):
            raise UsageError(f"{path} points outside {entry}")
        files[str(real.relative_to(entry))] = file  # a blob, or a file that is not a link
        if path.is_symlink():
            # Relative, with other links resolved, so that the link is valid on any host.
            target = os.path.relpath(real, path.parent)
            links.append(WeightLink(f"snapshots/{snapshot.name}/{file.path}", target))
    if main.is_file():
        files["refs/main"] = _tree_file("refs/main", main)
    named = tuple(replace(file, path=path) for path, file in sorted(files.items()))
    origin = "hf:" + "/".join(entry.name.split("--")[1:]) + f"@{snapshot.name}"
    return Tree(name or entry.name, named, tuple(links), origin)


def _files(
    directory: Path, below: str = "", within: frozenset[Path] = frozenset()
) -> Iterator[TreeFile]:
    """Yield the files of a directory. `within`: real paths of its parents, to detect loops."""
    within |= {(directory / below).resolve()}
    try:
        with os.scandir(directory / below) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"{directory / below} cannot be read: {error.strerror}") from error
    for entry in entries:
        path = f"{below}{entry.name}"
        if is_passed_over(entry.name):
            continue
        if entry.is_dir():
            if (directory / path).resolve() in within:
                raise UsageError(f"{directory / path} links back to a directory that contains it")
            yield from _files(directory, f"{path}/", within)
        else:
            yield _tree_file(path, directory / path)


def is_passed_over(path: str) -> bool:
    """Whether a file is not part of the model, by its path alone."""
    return any(
        name in LEFT_OUT or name.startswith(".clusterctl-") or name.endswith(_UNFINISHED)
        for name in path.split("/")
    )


def _tree_file(path: str, source: Path) -> TreeFile:
    """Return the file's entry. Raises UsageError if it cannot be sent."""
    if any(ord(character) < 32 for character in path):
        raise UsageError(f"{path!r} has a control character in its name", hint="rename it")
    try:
        found = source.stat()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{source} is neither a file nor a directory", hint="move it away")
    if not os.access(source, os.R_OK):
        raise UsageError(f"{source} is not readable: permission denied", hint=f"chmod u+r {source}")
    return TreeFile(path, source.resolve(), found.st_size, stat.S_IMODE(found.st_mode))


def faults(tree: Tree) -> list[ClusterctlError]:
    """Return why vLLM could not load the tree. Reads only the first bytes of files."""
    model = {file.path: file for file in tree.files}
    if tree.links:  # as vLLM sees it: through the links of a snapshot
        blobs = {file.path.rpartition("/")[2]: file for file in tree.files}
        below = [file for file in tree.files if file.path.startswith("snapshots/")]
        model = {file.path.split("/", 2)[2]: file for file in below}
        for link in tree.links:
            model[link.path.split("/", 2)[2]] = blobs[link.target.rpartition("/")[2]]
    problems: list[ClusterctlError] = []
    entry = by_directory(tree.name)
    cached = tree.name.removeprefix("models--").replace("--", "/", 1) if tree.links else ""
    hub_id = cached or (entry.hub_id if entry else "ORGANIZATION/NAME, its name on the Hub")
    download = f"download all of it: clusterctl model pull {hub_id}"
    again = f"download it again: clusterctl model pull {hub_id}"

    def fault(text: str, hint: str) -> None:
        problems.append(RequirementsNotMet(f"{tree.name} {text}", hint=hint))

    if "config.json" not in model:
        fault("has no config.json", "name the directory that holds it")
    weights = {
        path: file
        for path, file in model.items()
        if "/" not in path and path.endswith(WEIGHT_SUFFIXES) and path not in NOT_WEIGHTS
    }
    if not weights and RANDOM_WEIGHTS not in model:
        fault("has no weights", download)
    for path, file in weights.items():
        with file.source.open("rb") as opened:
            if opened.read(len(_POINTER)) == _POINTER:
                fault(f"has a git-lfs pointer in place of {path}", "git lfs pull")
                continue
        if path.endswith(".safetensors"):
            try:
                if lacking := shortfall(file.source):
                    fault(f"has a {path} that lacks its last {lacking} bytes", again)
            except ValueError as error:
                fault(f"has a broken {path}: {error}", download)
    # Shards that an index lists but the directory lacks.
    named: set[str] = set()
    for path, file in model.items():
        if path.endswith(".index.json") and "/" not in path:
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                shards = json.loads(file.source.read_bytes())["weight_map"].values()
                named |= set(map(str, shards))
    if missing := sorted(named - model.keys()):
        fault(f"lacks {len(missing)} of its weight files: {', '.join(missing[:3])}", again)
    return problems


MOST_HEADER = 100_000_000  # Bytes of header that the safetensors library itself reads at most


def shortfall(path: Path) -> int:
    """Return by how many bytes the file is shorter than its header says; 0 when it is complete.

    Raises ValueError when it is not a safetensors file, OSError when it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > MOST_HEADER:
            raise ValueError("it does not begin with a safetensors header")
        if size < 8 + length:
            return 8 + length - size
        header = file.read(length)
    try:
        tensors = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("its safetensors header cannot be read") from error
    return max(0, 8 + length + end - size)


def unhashed(tree: Tree, cache: HashCache) -> int:
    """Bytes that `manifest_of` will have to read: of files without a cached hash."""
    total = 0
    for file in tree.files:
        with suppress(OSError):  # raised by `manifest_of`
            if cache.get(Stamp.of(file.source)) is not None:
                continue
        total += file.size
    return total


def manifest_of(
    tree: Tree, *, cache: HashCache | None = None, say: Callable[[int], None] = lambda _: None
) -> Manifest:
    """Hash the files of `tree`, one thread per core (hashlib releases the GIL). `say` is called
    with the bytes hashed so far, except files with a cached hash.

    Raises StepFailed, for all files together, when one cannot be read, changes while it is read, or
    does not match its name in a Hugging Face cache, a sha256.
    """
    total, lock, given_up = 0, threading.Lock(), threading.Event()
    kept = cache or HashCache()

    def told(size: int) -> None:
        nonlocal total
        if given_up.is_set():
            raise Interrupted("interrupted while files were hashed")
        with lock:
            total += size
            say(total)

    def hashed(file: TreeFile) -> WeightFile | ClusterctlError:
        try:
            before = Stamp.of(file.source)
            found = kept.get(before)
            if found is None:
                found = hash_file(file.source, told)
                if Stamp.of(file.source) != before:
                    return changed(file.source)
                kept.put(before, found)
        except OSError as error:
            return StepFailed(f"{file.source} cannot be read: {error.strerror}")
        # A blob of a Hugging Face cache with 64 digits is named by its sha256 (with 40, by git).
        name = file.source.name
        if file.path.startswith("blobs/") and len(name) == 64 and name != found.sha256:
            return StepFailed(
                f"{file.source} is damaged: its sha256 does not match its name",
                hint=f"rm {file.source}   and download the model again",
            )
        return WeightFile(file.path, before.size, plain_mode(file.mode), found.sha256, found.chunks)

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        try:
            outcomes = list(pool.map(hashed, tree.files))
        except KeyboardInterrupt:
            given_up.set()  # leaving the pool joins its threads, and a file may take a minute
            raise
    raise_all(each for each in outcomes if isinstance(each, ClusterctlError))
    files = in_order(each for each in outcomes if isinstance(each, WeightFile))
    try:
        return Manifest(tree.name, files, tree.links, tree.origin)
    except ValueError as error:
        raise StepFailed(f"{tree.name} cannot be sent: {error}", hint="rename the file") from error


def changed(path: Path) -> StepFailed:
    """Return the error for a file that was modified while it was read."""
    return StepFailed(
        f"{path} changed while it was read",
        hint="wait until nothing writes to it, then run the same command again",
    )


class FilesSource:
    """A BlobSource over a directory. Reading a file that changed since it was hashed raises
    StepFailed: hosts would reject its pieces one by one without knowing why."""

    def __init__(self, tree: Tree, manifest: Manifest) -> None:
        sources = {file.path: file for file in tree.files}
        self._files: dict[str, TreeFile] = {
            file.blob.digest: sources[file.path] for file in manifest.files
        }
        self._stamps = {digest: Stamp.of(file.source) for digest, file in self._files.items()}

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        file = self._files[blob.digest]
        try:
            with file.source.open("rb") as opened:
                opened.seek(offset)
                while chunk := opened.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise StepFailed(f"{file.source} cannot be read: {error.strerror}") from error
        if not self._same(blob.digest):
            raise changed(file.source)

    def changes(self) -> Sequence[StepFailed]:
        """Return an error for every file that was modified or removed since it was hashed."""
        return [
            changed(file.source) for digest, file in self._files.items() if not self._same(digest)
        ]

    def _same(self, digest: str) -> bool:
        try:
            return Stamp.of(self._files[digest].source) == self._stamps[digest]
        except OSError:
            return False
