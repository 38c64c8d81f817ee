"""Hashes of large files: in parallel, and only once for a file that has not changed since."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import ClusterctlError, Interrupted, StepFailed, raise_all
from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.content import CHUNK
from clusterctl.transfer.local_disk import cache_directory
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, in_order
from clusterctl.transfer.weights.tree import Tree, TreeFile

# Is told the bytes hashed so far, over all files; nothing of files whose hash is known.
Say = Callable[[int], None]


@dataclass(frozen=True)
class Hashed:
    """What a file's bytes come to."""

    sha256: str
    chunks: tuple[str, ...]  # Of every PIECE bytes; of an empty file, none


@dataclass(frozen=True)
class Stamp:
    """What changes when a file is written to: with it, a hash of before still holds."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        found = path.stat()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class HashCache:
    """Remembers hashes by what `Stamp` holds, a small file each. Never needed, only quicker."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or cache_directory() / "hashes"

    def get(self, stamp: Stamp) -> Hashed | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._path(stamp).read_bytes())
            if (kept["size"], kept["mtime_ns"]) == (stamp.size, stamp.mtime_ns):
                return Hashed(kept["sha256"], tuple(kept["chunks"]))
        return None

    def put(self, stamp: Stamp, hashed: Hashed) -> None:
        document = {
            "size": stamp.size,
            "mtime_ns": stamp.mtime_ns,
            "sha256": hashed.sha256,
            "chunks": hashed.chunks,
        }
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._path(stamp)
            draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
            draft.write_text(json.dumps(document))
            draft.replace(path)

    def _path(self, stamp: Stamp) -> Path:
        return self._directory / f"{stamp.device}-{stamp.inode}.json"


def hash_file(
    path: Path, told: Callable[[int], None] = lambda _: None, *, piece_size: int = PIECE
) -> Hashed:
    """Read `path` once; `told` gets the bytes of each read. Raises OSError."""
    whole, part, chunks, filled = hashlib.sha256(), hashlib.sha256(), [], 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(min(CHUNK, piece_size - filled)):
            whole.update(piece)
            part.update(piece)
            filled += len(piece)
            told(len(piece))
            if filled == piece_size:
                chunks.append(part.hexdigest())
                part, filled = hashlib.sha256(), 0
    if filled:
        chunks.append(part.hexdigest())
    return Hashed(whole.hexdigest(), tuple(chunks))


def unhashed(tree: Tree, cache: HashCache) -> int:
    """Bytes that `manifest_of` will have to read: those of files whose hash is not known."""
    return sum(file.size for file in tree.files if not _is_known(file, cache))


def _is_known(file: TreeFile, cache: HashCache) -> bool:
    try:
        return cache.get(Stamp.of(file.source)) is not None
    except OSError:  # told by whoever reads it
        return False


def manifest_of(
    tree: Tree, *, cache: HashCache | None = None, say: Say = lambda _: None
) -> Manifest:
    """`tree` with its hashes, one thread a core (hashlib lets go of the interpreter's lock).

    Raises, of all files together, StepFailed for one that cannot be read, that changed while
    it was read, or whose bytes are not those that a Hugging Face cache names it for.
    """
    total, lock, given_up = 0, threading.Lock(), threading.Event()

    def told(size: int) -> None:
        nonlocal total
        if given_up.is_set():
            raise Interrupted("interrupted while files were hashed")
        with lock:
            total += size
            say(total)

    kept = cache or HashCache()
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        try:
            found = list(pool.map(lambda file: _hashed(file, kept, told), tree.files))
        except KeyboardInterrupt:
            given_up.set()  # the pool waits for its threads, and a file may take a minute
            raise
    raise_all(outcome for outcome in found if isinstance(outcome, ClusterctlError))
    files = in_order(outcome for outcome in found if isinstance(outcome, WeightFile))
    return Manifest(tree.name, files, tree.links, tree.origin)


def _hashed(
    file: TreeFile, cache: HashCache, told: Callable[[int], None]
) -> WeightFile | ClusterctlError:
    try:
        before = Stamp.of(file.source)
        hashed = cache.get(before)
        if hashed is None:
            hashed = hash_file(file.source, told)
            if Stamp.of(file.source) != before:
                return changed(file.source)
            cache.put(before, hashed)
    except OSError as error:
        return StepFailed(f"{file.source} cannot be read: {error.strerror}")
    if damage := _unlike_its_name(file, hashed):
        return damage
    return WeightFile(file.path, before.size, file.mode, hashed.sha256, hashed.chunks)


def _unlike_its_name(file: TreeFile, hashed: Hashed) -> StepFailed | None:
    """A blob of a Hugging Face cache with 64 digits is named by its sha256 (with 40, by git)."""
    name = file.source.name
    if not file.path.startswith("blobs/") or len(name) != 64 or name == hashed.sha256:
        return None
    return StepFailed(
        f"{file.source} is damaged: its sha256 is not its name",
        hint=f"rm {file.source}   and download the model again",
    )


def changed(path: Path) -> StepFailed:
    return StepFailed(
        f"{path} changed while it was read",
        hint="let what writes it come to its end, then run the same command again",
    )
