"""Hash large files, here and on hosts, in parallel, and again only after a change."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterctl import deadlines
from clusterctl.containers.driver import Say
from clusterctl.containers.failures import DISK, in_time
from clusterctl.containers.meter import Meter
from clusterctl.errors import MALFORMED, CommandFailed, ConnectionFailed
from clusterctl.local_cache import cache_directory, make_private
from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.weights import host_hash
from clusterctl.transport import python
from clusterctl.transport.base import Transport, lines


@dataclass(frozen=True)
class Hashed:
    """The hashes of one file."""

    sha256: str
    chunks: tuple[str, ...]  # sha256 of every PIECE bytes; none for an empty file


@dataclass(frozen=True)
class Stamp:
    """Identity, size and time of a file: while they stay the same, an earlier hash is valid."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        found = path.stat()
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class HashCache:
    """Remembers hashes by `Stamp`, one small file each. Only an optimization: it may be lost."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or cache_directory() / "hashes"

    def get(self, stamp: Stamp) -> Hashed | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._path(stamp).read_bytes())
            if (kept["size"], kept["mtime_ns"]) == (stamp.size, stamp.mtime_ns):
                return Hashed(kept["sha256"], tuple(kept["chunks"]))
        return None

    def put(self, stamp: Stamp, hashed: Hashed) -> None:
        document = {"size": stamp.size, "mtime_ns": stamp.mtime_ns, **asdict(hashed)}
        with suppress(OSError):
            make_private(self._directory)
            path = self._path(stamp)
            draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
            draft.write_text(json.dumps(document))
            draft.replace(path)

    def _path(self, stamp: Stamp) -> Path:
        return self._directory / f"{stamp.device}-{stamp.inode}.json"


def hash_file(
    path: Path, told: Callable[[int], None] = lambda _: None, *, piece_size: int = PIECE
) -> Hashed:
    """Hash `path` in one read, calling `told` with the bytes of each read. Raises OSError."""
    whole, pieces = host_hash.hash_file(str(path), piece_size, told)
    return Hashed(whole, tuple(pieces))


PROGRAM = python.Program(
    "clusterctl.transfer.weights", ("clusterctl.transfer.reaching", "host_hash")
)

EVERY = 2.0  # Seconds between two progress lines of a host


def hashes(
    transport: Transport,
    paths: Sequence[str],
    size: int,
    *,
    piece_size: int | None = None,
    samples: int = 0,
    say: Say = lambda _: None,
    every: float = EVERY,
    stalled: float = deadlines.HASHING_SILENCE,
) -> dict[str, Hashed]:
    """Hash files on the host; return their hashes by path, with piece hashes if `piece_size`
    (bytes) is given. Unreadable files are left out. `size`: total bytes, for progress in `say`.
    `samples`: hash only so many MiB of each file, all of which must be larger.

    Raises CommandTimedOut if the disk delivers nothing more, CommandFailed, ConnectionFailed.
    """
    if not paths:
        return {}
    host = transport.host.name
    meter = Meter(lambda text: say(f"{text} hashed"), size)
    asked = {
        "paths": list(paths),
        "piece": piece_size or 0,
        "samples": samples,
        "every": every,
    }
    found: dict[str, Hashed] = {}
    with (
        python.start(transport, PROGRAM, asked, sudo=True) as channel,
        in_time("hashing files", host, DISK),
    ):
        channel.settimeout(stalled)
        moved = time.monotonic()
        try:
            for line in lines(channel):
                said = json.loads(line)
                if "path" in said:
                    found[said["path"]] = Hashed(str(said["sha256"]), tuple(said["pieces"]))
                    continue
                now = time.monotonic()
                if int(said["at"]) != meter.bytes:
                    moved = now
                elif now - moved > stalled:  # the host is alive, but its disk delivers nothing
                    raise TimeoutError(f"no byte was read for {stalled:.0f} s")
                meter.reached(int(said["at"]))
        except MALFORMED as error:
            raise CommandFailed(
                "hashing files failed: the host's report cannot be read",
                host=host,
                detail=repr(error),
            ) from error
        status = channel.wait(timeout=deadlines.STREAM_END)
        if status == -1:
            raise ConnectionFailed(
                "the connection was lost while files were hashed",
                host=host,
                hint="run the same command again",
            )
        if status != 0:
            raise python.failure(channel, "hashing files", host)
    return {path: found[path] for path in paths if path in found}
