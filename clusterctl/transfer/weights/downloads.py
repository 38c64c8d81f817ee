"""Download a model from a hub to this machine. Two runs cannot download the same model at once.

Several files are downloaded in parallel. Each resumes where it stopped, can be read from the first
byte on, and is verified by hash at its end.

huggingface_hub does not download the files, since it starts every interrupted file from the
beginning (file_download.py: `_download_to_tmp_and_move`), can be read only at the end, and supports
no other hub (docs/decisions/0008-hubs-and-their-clients.md).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import get_session

from clusterctl.containers.meter import gib
from clusterctl.errors import ClusterctlError, LockHeld, RequirementsNotMet, StepFailed, raise_all
from clusterctl.local_cache import cache_directory, make_private
from clusterctl.transfer.blob_store import (
    ROOM,
    SPARE,
    free_space,
    locked,
    same_file,
)
from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.content import CHUNK, Blob
from clusterctl.transfer.weights.hashing import HashCache, Hashed, Stamp, hash_file
from clusterctl.transfer.weights.hub import FILE, Hub, HubFile, Listing, hub_errors
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transport.lock import LockHolder, this_process

# Files at a time: one stream rarely fills a link, and hubs throttle many streams.
AT_ONCE = 4

TRIES = 5  # attempts in a row without a new byte, after which a file fails

# Seconds before the second attempt; each further one waits twice as long.
PAUSE = 2.0


def download_directory(listing: Listing) -> Path:
    """Directory on this machine that holds a model until hosts have it; a later run resumes
    there."""
    model = listing.model_id.replace("/", "--")
    revision = listing.revision.replace("/", "-")
    return cache_directory() / "models" / f"{listing.hub}--{model}@{revision}"


@contextmanager
def only_one(directory: Path, model_id: str) -> Iterator[None]:
    """Hold a lock on `directory` until the end of the block or of the process: two pulls would
    write the same files, and the first to end would remove the other's.

    Raises LockHeld, naming the holder; StepFailed when the lock file cannot be written.
    """
    path = directory.with_name(f"{directory.name}.lock")
    try:
        make_private(path.parent)
        while True:
            file = path.open("a+b")
            if not locked(file):
                with file:
                    raise _held(file, model_id)
            if same_file(file, path):
                break
            file.close()  # just removed by the last holder, so a lock on it excludes nobody
        file.truncate(0)
        file.write(this_process(f"model pull {model_id}").to_json().encode())
        file.flush()
    except OSError as error:
        raise StepFailed(
            f"{path} cannot be locked: {error.strerror}",
            hint="set XDG_CACHE_HOME to a directory on a local disk",
        ) from error
    with file:
        try:
            yield
        finally:
            with suppress(OSError):  # closing the file unlocks it; the name is not needed
                path.unlink()


def _held(file: BinaryIO, model_id: str) -> LockHeld:
    file.seek(0)
    try:
        holder = LockHolder(**json.loads(file.read()))
    except (ValueError, TypeError):  # the holder has not written its record yet
        return LockHeld(
            f"another clusterctl is downloading {model_id} on this machine",
            hint=f"see which: fuser -v {file.name}",
        )
    return LockHeld(
        f"{model_id} is being downloaded on this machine by {holder}",
        hint=f"wait for it (tail --pid={holder.pid} -f /dev/null), then run this again",
    )


class _Refused(Exception):
    """The hub responded with an error."""

    def __init__(self, answer: httpx2.Response) -> None:
        super().__init__(answer.status_code)
        self.answer = answer


@dataclass
class _Arrival:
    """Download state of one file."""

    have: int = 0  # bytes that can be read
    whole: bool = False
    error: ClusterctlError | None = None


class Downloads:
    """The BlobSource of a model that is downloaded below `directory`: a blob can be read from its
    first byte on. Files from an earlier run and from the cache of the hub's own client are reused.

    Small files are downloaded completely first (`begin`), since Hugging Face publishes no SHA-256
    of them. The download of a large file starts with its first read: one that all hosts have is
    never downloaded.

    `told` is called with the bytes present of all files together, whenever that number changes;
    `hashing` with the bytes that were hashed.
    """

    def __init__(
        self,
        directory: Path,
        hub: Hub,
        listing: Listing,
        name: str,
        *,
        told: Callable[[int], None] = lambda _: None,
        hashing: Callable[[int], None] = lambda _: None,
        cache: HashCache | None = None,
        pause: float = PAUSE,
    ) -> None:
        self._directory, self._name = directory, name
        self._hub, self._listing = hub, listing
        self._headers = dict(hub.headers)
        self._told, self._hashing = told, hashing
        self._read = 0  # Bytes that were hashed
        self._cache = cache or HashCache()
        self._pause = pause
        self._large = [file for file in listing.files if file.sha256 and file.size > PIECE]
        self._files: dict[str, HubFile] = {}  # By digest
        self._arrivals = {file.path: _Arrival() for file in listing.files}
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="download")
        self._begun: dict[str, Future[None]] = {}  # Downloads of large files, by path
        self._beginning = threading.Lock()

    def begin(self) -> Manifest:
        """Download the small files, and return the manifest so far: large files have no piece
        hashes yet. Raises the hub's errors."""
        self.run([file for file in self._listing.files if file not in self._large])
        manifest = self._manifest()
        by_path = {file.path: file for file in self._listing.files}
        self._files = {each.blob.digest: by_path[each.path] for each in manifest.files}
        return manifest

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        file = self._files[blob.digest]
        with self._beginning:
            if file in self._large and file.path not in self._begun:
                self._begun[file.path] = self._pool.submit(self.run, [file])
        return self.read(file, offset)

    def complete(self) -> Manifest:
        """Wait for running downloads, and return the manifest with all piece hashes."""
        wait(self._begun.values())
        raise_all(self.trouble())
        return self._manifest()

    def trouble(self) -> Sequence[ClusterctlError]:
        """Return the errors of files that did not arrive."""
        ended = [future.exception() for future in self._begun.values() if future.done()]
        return [error for error in ended if isinstance(error, ClusterctlError)]

    def stop(self) -> None:
        """Start no further file, and stop running downloads at their next bytes."""
        self._interrupt()
        self._pool.shutdown(cancel_futures=True)

    def run(self, files: Sequence[HubFile]) -> None:
        """Download the files. Raises the errors of all of them together; what arrived is kept."""
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            try:
                list(pool.map(self._bring, files))
            except BaseException:  # Ctrl-C: the pool waits for its threads
                self._interrupt()
                raise
        ended = [self._arrivals[file.path].error for file in files]
        raise_all({error.summary: error for error in ended if error}.values())

    def read(self, file: HubFile, offset: int) -> Iterator[bytes]:
        """Yield the file's bytes from `offset` on, as they arrive. Raises the file's error."""
        arrival, path = self._arrivals[file.path], self._directory / file.path
        while offset < file.size:
            with self._changed:
                self._changed.wait_for(
                    lambda: arrival.have > offset or arrival.error or self._stopped.is_set()  # noqa: B023
                )
                have = arrival.have
            if arrival.error:
                raise arrival.error
            if self._stopped.is_set() and have <= offset:
                raise StepFailed("the download was stopped")
            # It is renamed once complete, perhaps right now: the next iteration then finds it.
            with (
                suppress(FileNotFoundError),
                (path if arrival.whole else _part(path)).open("rb") as opened,
            ):
                opened.seek(offset)
                while offset < have and (piece := opened.read(min(CHUNK, have - offset))):
                    offset += len(piece)
                    yield piece

    def _interrupt(self) -> None:
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def _manifest(self) -> Manifest:
        """Return the manifest with the hashes of the files that were downloaded."""
        hashed = {
            file.path: self._hashes(self._directory / file.path)
            for file in self._listing.files
            if file not in self._large or file.path in self._begun
        }
        return self._listing.manifest(self._name, hashed)

    def _bring(self, file: HubFile) -> None:
        """Download the file, a second time if its hash is wrong; or record its error."""
        arrival, path = self._arrivals[file.path], self._directory / file.path
        part = _part(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cached = self._hub.cached(self._listing, file)
            if cached and not path.exists():
                path.unlink(missing_ok=True)  # a link into a cache that is gone
                path.symlink_to(cached)
            if not self._is_right(file, path):
                path.unlink(missing_ok=True)
                for _ in range(2):
                    with part.open("r+b" if part.exists() else "w+b") as opened:
                        self._fill(file, arrival, opened)
                    if self._is_right(file, part):
                        part.rename(path)
                        break
                    with part.open("r+b") as opened:
                        opened.truncate(0)  # not unlinked: a reader may have this very file open
                    self._move(arrival, 0)
                else:
                    raise StepFailed(
                        f"{file.path} arrived twice with a hash other than the hub's",
                        hint="check that no proxy in between changes files",
                    )
            self._move(arrival, file.size, whole=True)
        except ClusterctlError as error:
            failure = error
        except OSError as error:
            failure = StepFailed(f"{path} cannot be written: {error.strerror}", hint=ROOM)
        else:
            return
        with self._changed:
            arrival.error = failure
            self._changed.notify_all()

    def _fill(self, file: HubFile, arrival: _Arrival, opened: BinaryIO) -> None:
        """Download bytes until the hub's size is reached, pausing longer between attempts."""
        have = min(opened.seek(0, 2), file.size)
        failures = 0
        while have < file.size:
            before = have
            reason = StepFailed(f"the connection ended while {file.path} was downloaded")
            try:
                with hub_errors(self._hub, self._listing.model_id, self._listing.revision):
                    self._attempt(file, arrival, opened, have)
            except _Refused as refused:
                status = refused.answer.status_code
                reason = self._hub.refusal(
                    refused.answer, self._listing.model_id, self._listing.revision
                )  # type: ignore[assignment]
                if 400 <= status < 500 and status not in {408, 429}:
                    raise reason from refused  # asking again gives the same answer
            except StepFailed as error:
                reason = error
            have = opened.tell()
            if have > file.size:
                raise StepFailed(f"{file.path} is longer than the hub lists")
            failures = failures + 1 if have <= before else 1
            if have < file.size and (
                failures >= TRIES or self._stopped.wait(self._pause * 2 ** (failures - 1))
            ):
                raise reason

    def _attempt(self, file: HubFile, arrival: _Arrival, opened: BinaryIO, have: int) -> None:
        """Append the bytes that one request returns. Raises _Refused, and errors of httpx2."""
        opened.seek(have)
        self._move(arrival, have)
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with get_session().stream("GET", file.url, headers=headers, extensions=FILE) as answer:
            if answer.status_code not in {200, 206}:
                answer.read()
                raise _Refused(answer)
            begins = answer.headers.get("content-range", "").startswith(f"bytes {have}-")
            if have and not (answer.status_code == 206 and begins):
                have = opened.seek(0)  # the server ignores ranges and sends the whole file again
                opened.truncate()
                self._move(arrival, 0)
            # Without a size httpx2 yields what it receives; with one it waits for that many bytes.
            for piece in answer.iter_raw():
                have += opened.write(piece)
                opened.flush()
                self._move(arrival, have)
                if have > file.size:
                    return
                if self._stopped.is_set():
                    raise StepFailed("the download was stopped")

    def _is_right(self, file: HubFile, path: Path) -> bool:
        """Whether the file has the hash that the hub publishes, or the size where it has none."""
        if not path.is_file() or path.stat().st_size != file.size:
            return False
        hashed = self._hashes(path)  # of every file: the manifest needs them too
        if file.sha256:
            return hashed.sha256 == file.sha256
        if not file.git_sha1:
            return True
        # Git's name of a blob: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
        data = path.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
        return git.hexdigest() == file.git_sha1

    def _hashes(self, path: Path) -> Hashed:
        def was_read(size: int) -> None:
            with self._changed:
                self._read += size
                self._hashing(self._read)

        stamp = Stamp.of(path)
        hashed = self._cache.get(stamp)
        if hashed is None:
            hashed = hash_file(path, was_read)
            self._cache.put(stamp, hashed)
        return hashed

    def _move(self, arrival: _Arrival, have: int, *, whole: bool = False) -> None:
        with self._changed:
            arrival.have, arrival.whole = have, whole
            self._changed.notify_all()
            # Under the lock, so that the reported number never falls by a race.
            self._told(sum(each.have for each in self._arrivals.values()))


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def require_room(listing: Listing, hub: Hub, directory: Path) -> None:
    """Raise RequirementsNotMet when this machine's disk has no room for the download."""
    had = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    cached = sum(file.size for file in listing.files if hub.cached(listing, file))
    missing = listing.size - max(had, cached) + SPARE
    free = free_space(directory)
    if missing > free:
        raise RequirementsNotMet(
            f"{listing.model_id} needs {gib(missing)} on this machine while it passes through, "
            f"but {gib(free)} are free in {directory}",
            hint="set XDG_CACHE_HOME to a directory on a larger disk, or let a host download it: "
            "clusterctl model pull ... --on HOST",
        )


def clear(directory: Path) -> None:
    """Remove the downloads, now that hosts have them. Raises StepFailed."""
    try:
        if directory.exists():
            shutil.rmtree(directory)
    except OSError as error:
        raise StepFailed(
            f"{directory} cannot be removed: {error.strerror}", hint=f"rm -r {directory}"
        ) from error
