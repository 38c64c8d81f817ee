"""Read a model's directory on this machine: list its files and check that vLLM could load them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError
from clusterctl.transfer.weights.manifest import WeightLink

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

    Links in a plain directory are followed; a cache entry keeps its own (snapshots to blobs).
    `name` is the name on hosts; default: the directory's own. Raises UsageError when the directory
    does not exist, cannot be read or holds a file that cannot be sent.
    """
    directory = directory.expanduser()
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise UsageError(f"{directory} {what}", hint="clusterctl model push DIRECTORY")
    directory = directory.resolve()
    if (directory / "snapshots").is_dir():
        return _cache_entry(directory, name)
    if directory.parent.name == "snapshots" and not name:
        name = directory.parent.parent.name.rpartition("--")[2]
    return Tree(name or directory.name, tuple(_files(directory)))


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
    """Yield files of a directory. `within`: real paths of those around it, to detect loops."""
    within |= {(directory / below).resolve()}
    try:
        with os.scandir(directory / below) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"{directory / below} cannot be read: {error.strerror}") from error
    for entry in entries:
        path = f"{below}{entry.name}"
        if _passed_over(entry.name):
            continue
        if entry.is_dir():
            if (directory / path).resolve() in within:
                raise UsageError(f"{directory / path} links back to a directory that contains it")
            yield from _files(directory, f"{path}/", within)
        else:
            yield _tree_file(path, directory / path)


def is_passed_over(path: str) -> bool:
    """Whether a file is not part of the model, by its path alone."""
    return any(_passed_over(part) for part in path.split("/"))


def _passed_over(name: str) -> bool:
    return name in LEFT_OUT or name.startswith(".clusterctl-") or name.endswith(_UNFINISHED)


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
    """Return the reasons why vLLM could not load the tree. Reads only the first bytes of files."""
    model = {file.path: file for file in tree.files}
    if tree.links:  # as vLLM sees it: through the links of a snapshot
        blobs = {file.path.rpartition("/")[2]: file for file in tree.files}
        below = [file for file in tree.files if file.path.startswith("snapshots/")]
        model = {file.path.split("/", 2)[2]: file for file in below}
        for link in tree.links:
            model[link.path.split("/", 2)[2]] = blobs[link.target.rpartition("/")[2]]
    problems: list[ClusterctlError] = []
    if "config.json" not in model:
        problems.append(_fault(tree, "has no config.json", "name the directory that holds it"))
    weights = {
        path: file
        for path, file in model.items()
        if "/" not in path and path.endswith(WEIGHT_SUFFIXES) and path not in NOT_WEIGHTS
    }
    if not weights and RANDOM_WEIGHTS not in model:
        problems.append(_fault(tree, "has no weights", f"download it: {_pull(tree)}"))
    problems += [fault for path, file in weights.items() if (fault := _broken(tree, path, file))]
    # Shards that an index lists but the directory lacks.
    named: set[str] = set()
    for path, file in model.items():
        if path.endswith(".index.json") and "/" not in path:
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                shards = json.loads(file.source.read_bytes())["weight_map"].values()
                named |= set(map(str, shards))
    if missing := sorted(named - model.keys()):
        text = f"lacks {len(missing)} of its weight files: {', '.join(missing[:3])}"
        problems.append(_fault(tree, text, f"download it again: {_pull(tree)}"))
    return problems


def _broken(tree: Tree, path: str, file: TreeFile) -> RequirementsNotMet | None:
    with file.source.open("rb") as opened:
        if opened.read(len(_POINTER)) == _POINTER:
            return _fault(tree, f"has a git-lfs pointer in place of {path}", "git lfs pull")
    if not path.endswith(".safetensors"):
        return None
    try:
        lacking = shortfall(file.source)
    except ValueError as error:
        return _fault(tree, f"has a broken {path}: {error}", f"download it: {_pull(tree)}")
    if not lacking:
        return None
    text = f"has a {path} that lacks its last {lacking} bytes"
    return _fault(tree, text, f"download it again: {_pull(tree)}")


def _pull(tree: Tree) -> str:
    return f"clusterctl model pull {tree.name}"


def _fault(tree: Tree, text: str, hint: str) -> RequirementsNotMet:
    return RequirementsNotMet(f"{tree.name} {text}", hint=hint)


MOST_HEADER = 100_000_000  # Bytes of header that the safetensors library itself reads at most


def shortfall(path: Path) -> int:
    """Bytes that the file lacks of the length in its header; 0 when it is complete.

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
