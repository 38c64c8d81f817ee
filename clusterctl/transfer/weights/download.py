"""Files of a hub on their way to this machine: several at once, each resumed where it stopped,
readable from the first byte on, and believed when their hash is right."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from clusterctl.errors import ClusterctlError, StepFailed, raise_all
from clusterctl.transfer.content import CHUNK
from clusterctl.transfer.local_disk import ROOM
from clusterctl.transfer.weights.hashing import HashCache, Hashed, Stamp, hash_file
from clusterctl.transfer.weights.hub import HubFile, Refused

AT_ONCE = 4
"""Files; one stream from a hub's storage rarely fills a link, and more than a few are throttled."""

TRIES = 5
"""Attempts in a row that bring no byte, before a file is given up."""

PAUSE = 2.0
"""Seconds before the second attempt; each further one waits twice as long."""


class Stream(Protocol):
    """See OperatorWeb.stream."""

    def __call__(self, url: str, headers: Mapping[str, str], offset: int) -> Iterator[bytes]: ...


@dataclass
class _Arrival:
    """How far one file is."""

    file: HubFile
    have: int = 0
    whole: bool = False
    error: ClusterctlError | None = None


class Downloads:
    """The files of a model, below a directory. Files that are there from an earlier run count.

    `told` gets the bytes that are there of all files together, whenever more are; `hashing` those
    that were hashed of what is there, as often; `explain` words a refusal of the hub.
    """

    def __init__(
        self,
        directory: Path,
        stream: Stream,
        headers: Mapping[str, str],
        *,
        explain: Callable[[Refused], ClusterctlError] = lambda refused: refused,
        told: Callable[[int], None] = lambda _: None,
        hashing: Callable[[int], None] = lambda _: None,
        cache: HashCache | None = None,
        pause: float = PAUSE,
    ) -> None:
        self._directory = directory
        self._stream = stream
        self._headers = headers
        self._explain = explain
        self._told, self._hashing = told, hashing
        self._read = 0
        self._cache = cache or HashCache()
        self._pause = pause
        self._changed = threading.Condition()
        self._arrivals: dict[str, _Arrival] = {}
        self._stopped = threading.Event()

    def path(self, file: HubFile) -> Path:
        """Where the file is once it is whole."""
        return self._directory / file.path

    def expect(self, files: Sequence[HubFile]) -> None:
        """They are to come: from now on they can be read, as far as they are there."""
        with self._changed:
            for file in files:
                self._arrivals.setdefault(file.path, _Arrival(file))

    def hashed(self, file: HubFile) -> Hashed:
        """The hashes of a file that is whole, those of its pieces too."""
        return self._hashes(self.path(file))

    def run(self, files: Sequence[HubFile]) -> None:
        """Get them all. Raises the errors of all files together; what came is kept."""
        self.expect(files)
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            try:
                list(pool.map(self._bring, files))
            except BaseException:  # Ctrl-C: the pool waits for its threads
                self.stop()
                raise
        ended = [self._arrivals[file.path].error for file in files]
        errors = [error for error in ended if error]
        raise_all({error.summary: error for error in errors}.values())

    def stop(self) -> None:
        """Begin nothing more, and end what runs at its next piece."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def read(self, file: HubFile, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on, each as soon as it is there. Raises its error."""
        while offset < file.size:
            for piece in self._available(file, offset):
                offset += len(piece)
                yield piece

    def _available(self, file: HubFile, offset: int) -> Iterator[bytes]:
        """What is there from `offset` on; waits until that is at least one byte."""
        arrival = self._arrivals[file.path]
        with self._changed:
            self._changed.wait_for(
                lambda: arrival.have > offset or arrival.error or self._stopped.is_set()
            )
            have = arrival.have
        if arrival.error:
            raise arrival.error
        if self._stopped.is_set() and have <= offset:
            raise StepFailed("the download was stopped")
        path = self.path(file) if arrival.whole else _part(self.path(file))
        with suppress(FileNotFoundError), path.open("rb") as opened:
            opened.seek(offset)
            while offset < have and (piece := opened.read(min(CHUNK, have - offset))):
                offset += len(piece)
                yield piece

    def _bring(self, file: HubFile) -> None:
        arrival = self._arrivals[file.path]
        try:
            if not self._is_there(file):
                self._fetch(file, arrival)
            self._move(arrival, file.size, whole=True)
        except ClusterctlError as error:
            self._fail(arrival, error)
        except OSError as error:
            text = f"{self.path(file)} cannot be written: {error.strerror}"
            self._fail(arrival, StepFailed(text, hint=ROOM))

    def _is_there(self, file: HubFile) -> bool:
        """Whether an earlier run brought it; its hash was checked then, or is now."""
        path = self.path(file)
        if not path.is_file() or path.stat().st_size != file.size:
            return False
        return _is_right(file, self._hashes(path), path)

    def _hashes(self, path: Path) -> Hashed:
        stamp = Stamp.of(path)
        hashed = self._cache.get(stamp)
        if hashed is None:
            hashed = hash_file(path, self._was_read)
            self._cache.put(stamp, hashed)
        return hashed

    def _was_read(self, size: int) -> None:
        with self._changed:
            self._read += size
            self._hashing(self._read)

    def _fetch(self, file: HubFile, arrival: _Arrival) -> None:
        part = _part(self.path(file))
        part.parent.mkdir(parents=True, exist_ok=True)
        for again in (True, False):
            with part.open("r+b" if part.exists() else "w+b") as opened:
                self._fill(file, arrival, opened)
            if _is_right(file, self._hashes(part), part):
                part.rename(self.path(file))
                return
            with part.open("r+b") as opened:
                # Not unlinked: whoever reads along has this very file open.
                opened.truncate(0)
            self._move(arrival, 0)
            if not again:
                raise StepFailed(
                    f"{file.path} arrived twice with other bytes than the hub promises",
                    hint="is a proxy in between that changes files?",
                )

    def _fill(self, file: HubFile, arrival: _Arrival, opened: BinaryIO) -> None:
        """Bytes until there are as many as there should be; resumes, with growing pauses."""
        have = min(opened.seek(0, 2), file.size)
        failures = 0
        while have < file.size:
            before = have
            try:
                have = self._attempt(file, arrival, opened, have)
                reason: StepFailed = StepFailed(
                    f"the connection ended early while {file.path} came"
                )
            except Refused as refused:
                if refused.final:
                    raise self._explain(refused) from refused
                reason = refused
            except StepFailed as error:
                have, reason = opened.tell(), error
            if have >= file.size:
                return
            failures = failures + 1 if have <= before else 1
            if failures >= TRIES or self._stopped.wait(self._pause * 2 ** (failures - 1)):
                raise reason

    def _attempt(self, file: HubFile, arrival: _Arrival, opened: BinaryIO, have: int) -> int:
        opened.seek(have)
        self._move(arrival, have)
        for piece in self._stream(file.url, self._headers, have):
            if not piece:  # no ranges here: it comes from the beginning
                have = opened.seek(0)
                opened.truncate(0)
                continue
            have += opened.write(piece)
            opened.flush()
            self._move(arrival, have)
            if have > file.size:
                raise StepFailed(f"{file.path} is longer than the hub says")
            if self._stopped.is_set():
                raise StepFailed("the download was stopped")
        return have

    def _move(self, arrival: _Arrival, have: int, *, whole: bool = False) -> None:
        with self._changed:
            arrival.have, arrival.whole = have, whole
            self._changed.notify_all()
            # Within the lock, so that nobody hears of fewer bytes after more.
            self._told(sum(each.have for each in self._arrivals.values()))

    def _fail(self, arrival: _Arrival, error: ClusterctlError) -> None:
        with self._changed:
            arrival.error = error
            self._changed.notify_all()


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _is_right(file: HubFile, hashed: Hashed, path: Path) -> bool:
    """Whether it is what the hub promises; by its length alone where that is all it tells."""
    if file.sha256:
        return hashed.sha256 == file.sha256
    return not file.git_sha1 or _git_sha1(path) == file.git_sha1


def _git_sha1(path: Path) -> str:
    """The name that git gives a blob: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects"""
    data = path.read_bytes()
    header = b"blob %d\0" % len(data)
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()
