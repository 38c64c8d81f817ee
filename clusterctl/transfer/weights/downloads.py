"""Download a model from a hub: to this machine, or by a host's own Python to that host.

The same program (`host_fetch`) downloads on both: each file resumes where it stopped, can be read
while it arrives, and is verified by hash at the end. huggingface_hub is not used, since it restarts
every interrupted file from the beginning (file_download.py: `_download_to_tmp_and_move`), makes
files readable only at the end, and supports no other hub
(docs/decisions/0008-hubs-and-their-clients.md).

On a host, the program is sent over the SSH session and ends with it. Credentials are sent on its
stdin, so they appear in no argv, environment or file on the host.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError

import certifi
import httpx2

from clusterctl import deadlines
from clusterctl.containers.meter import gib
from clusterctl.errors import (
    MALFORMED,
    ClusterctlError,
    CommandTimedOut,
    LockHeld,
    RequirementsNotMet,
    StepFailed,
    raise_all,
)
from clusterctl.inventory.outside import NOTHING, Outside
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
from clusterctl.transfer.weights import host_fetch
from clusterctl.transfer.weights.hashing import HashCache, Hashed, Stamp, hash_file
from clusterctl.transfer.weights.hub import (
    NO_ROUTE,
    UNTRUSTED,
    Hub,
    HubFile,
    Listing,
    refusal_of_file,
)
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transport import python
from clusterctl.transport.base import Transport, lines
from clusterctl.transport.lock import LockHolder, this_process

# Files at a time: one stream rarely fills a link, and hubs throttle many streams.
AT_ONCE = host_fetch.AT_ONCE

LOOK_EVERY = 0.1  # Seconds between looks for more bytes of a file that is being read

REPORT_EVERY = 0.5  # Seconds


def download_directory(listing: Listing) -> Path:
    """Directory on this machine that holds a model until hosts have it; a later run resumes
    there."""
    model = listing.model_id.replace("/", "--")
    revision = listing.revision.replace("/", "-")
    return cache_directory() / "models" / f"{listing.hub}--{model}@{revision}"


@contextmanager
def only_one(directory: Path, model_id: str) -> Iterator[None]:
    """Hold a lock on `directory` until the end of the block or of the process: two pulls would
    write the same files, and the first to finish would remove the other's.

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
            hint=f"to find it: fuser -v {file.name}",
        )
    return LockHeld(
        f"{model_id} is being downloaded on this machine by {holder}",
        hint=f"wait for it (tail --pid={holder.pid} -f /dev/null), then run this again",
    )


class Downloads:
    """The BlobSource of a model that is downloaded below `directory`: a blob can be read while it
    arrives. Files from an earlier run and from the cache of the hub's own client are reused.

    Small files are downloaded completely first (`begin`), since Hugging Face publishes no SHA-256
    of them. The download of a large file starts with its first read: one that all hosts have is
    never downloaded.

    `told` is called twice a second with the bytes present of all files together.
    """

    def __init__(
        self,
        directory: Path,
        hub: Hub,
        listing: Listing,
        name: str,
        *,
        told: Callable[[int], None] = lambda _: None,
        cache: HashCache | None = None,
        ca: str = "",
        pause: float = host_fetch.PAUSE,
    ) -> None:
        self._directory, self._name = directory, name
        self._hub, self._listing = hub, listing
        self._headers = dict(hub.headers)
        self._told, self._cache = told, cache or HashCache()
        self._large = [file for file in listing.files if file.sha256 and file.size > PIECE]
        self._by_digest: dict[str, HubFile] = {}
        self._arrivals = {
            each.path: host_fetch.File(
                each.url, str(directory / each.path), each.size, each.sha256, each.git_sha1
            )
            for each in listing.files
        }
        for arrival in self._arrivals.values():
            arrival.pause = pause
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="download")
        self._begun: dict[str, Future[Hashed]] = {}  # By path
        self._beginning = threading.Lock()
        trust_here(ca)

    def begin(self) -> Manifest:
        """Download the small files, and return the manifest so far: large files have no piece
        hashes yet. Raises the hub's errors."""
        threading.Thread(target=self._report, name="download-report", daemon=True).start()
        for file in self._listing.files:
            if file not in self._large:
                self._start(file)
        manifest = self.complete()
        by_path = {file.path: file for file in self._listing.files}
        self._by_digest = {each.blob.digest: by_path[each.path] for each in manifest.files}
        return manifest

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """Yield the file's bytes as they arrive. Raises the file's error."""
        file = self._by_digest[blob.digest]
        coming, arrival = self._start(file), self._arrivals[file.path]
        while offset < file.size:
            is_whole = coming.done()
            if is_whole:
                coming.result()
            have = file.size if is_whole else arrival.have
            if have <= offset:
                wait([coming], LOOK_EVERY)
                continue
            # It is renamed once complete, perhaps right now: the next turn then finds it.
            path = Path(arrival.path if is_whole else f"{arrival.path}.part")
            with suppress(FileNotFoundError), path.open("rb") as opened:
                opened.seek(offset)
                while offset < have and (piece := opened.read(min(CHUNK, have - offset))):
                    offset += len(piece)
                    yield piece

    def complete(self) -> Manifest:
        """Wait for running downloads, and return the manifest with the hashes of their files."""
        wait(self._begun.values())
        raise_all({error.summary: error for error in self.trouble()}.values())
        hashed = {path: coming.result() for path, coming in self._begun.items()}
        return self._listing.manifest(self._name, hashed)

    def trouble(self) -> Sequence[ClusterctlError]:
        """Return the errors of files that did not arrive."""
        ended = [coming.exception() for coming in self._begun.values() if coming.done()]
        return [error for error in ended if isinstance(error, ClusterctlError)]

    def stop(self) -> None:
        """Start no more files, and stop running downloads at their next bytes."""
        self._stopped.set()
        for arrival in self._arrivals.values():
            arrival.stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def _report(self) -> None:
        while not self._stopped.wait(REPORT_EVERY):
            self._told(sum(each.have for each in self._arrivals.values()))

    def _start(self, file: HubFile) -> Future[Hashed]:
        with self._beginning:
            if file.path not in self._begun:
                self._begun[file.path] = self._pool.submit(self._bring, file)
            return self._begun[file.path]

    def _bring(self, file: HubFile) -> Hashed:
        """Download the file unless it is present, and return its hashes."""
        path, arrival = self._directory / file.path, self._arrivals[file.path]
        try:
            hashed = self._kept(file, path)
            if hashed is None:
                whole, pieces = arrival.fetch(self._headers, PIECE)
                hashed = Hashed(whole, tuple(pieces))
                self._cache.put(Stamp.of(path), hashed)
        except HTTPError as error:
            raise refusal_of_file(
                self._hub, self._listing, file.url, error.code, dict(error.headers)
            ) from error
        except host_fetch.FetchFault as error:
            raise StepFailed(f"{file.path} did not arrive: {error}", hint=NO_ROUTE) from error
        except OSError as error:
            raise StepFailed(f"{path} cannot be written: {error.strerror}", hint=ROOM) from error
        arrival.have = file.size
        return hashed

    def _kept(self, file: HubFile, path: Path) -> Hashed | None:
        """Return the hashes of the file if an earlier run or the hub's own client downloaded it,
        judging by its hash or size."""
        path.parent.mkdir(parents=True, exist_ok=True)
        cached = self._hub.cached(self._listing, file)
        if cached and not path.exists():
            path.unlink(missing_ok=True)  # a link into a cache that is gone
            path.symlink_to(cached)
        if path.is_file() and path.stat().st_size == file.size:
            stamp = Stamp.of(path)
            found = self._cache.get(stamp) or hash_file(path)
            self._cache.put(stamp, found)
            if file.sha256 in ("", found.sha256) and file.git_sha1 in ("", git_name(path)):
                return found
        path.unlink(missing_ok=True)  # never written to: it may be a link into that cache
        return None


def trust_here(ca: str) -> None:
    """Make this process's downloads trust `ca` (PEM), and certifi's CAs if the machine has none."""
    if not host_fetch.TRUST.get_ca_certs():
        host_fetch.TRUST.load_verify_locations(certifi.where())
    host_fetch.reach(ca, {})


def git_name(path: Path) -> str:
    """Git's name of a blob: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects"""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def require_room(listing: Listing, hub: Hub, directory: Path) -> None:
    """Raise RequirementsNotMet if this machine's disk has no room for the download."""
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


PROGRAM = python.Program(
    "clusterctl.transfer.weights", ("clusterctl.transfer.reaching", "host_hash", "host_fetch")
)

# Seconds without a report, where one per second is due, after which the host counts as gone.
SILENCE = 60.0

# Headers that authenticate the user. The others describe this machine's HTTP client.
CREDENTIALS = frozenset({"authorization", "cookie"})


class HostTransport(httpx2.BaseTransport):
    """Sends this machine's HTTP requests from a host, which follows redirects."""

    def __init__(
        self,
        transport: Transport,
        outside: Outside = NOTHING,
        timeout: float = deadlines.LISTING,
    ) -> None:
        self._transport, self._outside, self._timeout = transport, outside, timeout

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2. Raises StepFailed when the host gets no answer from the hub."""
        said = python.ask(
            self._transport,
            PROGRAM,
            {
                "ca": self._outside.ca,
                "proxy": dict(self._outside.proxy),
                "url": str(request.url),
                "headers": _credentials(request.headers),
            },
            doing="asking the hub",
            timeout=self._timeout,
        )
        if "failed" in said:
            raise StepFailed(
                said["failed"],
                host=self._transport.host.name,
                hint=UNTRUSTED
                if "certificate" in said["failed"]
                else "does the host have internet access? Set a proxy with packages.proxy",
            )
        # The body is already decoded and complete, so these headers no longer apply.
        framing = {"transfer-encoding", "content-length", "content-encoding"}
        kept = {name: value for name, value in said["headers"].items() if name not in framing}
        return httpx2.Response(said["status"], headers=kept, text=said["body"], request=request)


def download_on_host(
    transport: Transport,
    hub: Hub,
    listing: Listing,
    directory: str,
    *,
    told: Callable[[int], None],
    outside: Outside = NOTHING,
) -> dict[str, Hashed]:
    """Have the host download all files of `listing` below `directory` (owned by root). Return their
    hashes by path.

    `told` is called with the bytes present. `outside`: how the host reaches the hub. Raises the
    errors of all files together; what arrived is kept, and the next call resumes from it.
    """
    by_path = {file.path: file for file in listing.files}
    asked = {
        "ca": outside.ca,
        "proxy": dict(outside.proxy),
        "headers": _credentials(hub.headers),
        "piece": PIECE,
        "directory": directory,
        "files": [[f.url, f.path, f.size, f.sha256, f.git_sha1] for f in listing.files],
    }
    found: dict[str, Hashed] = {}
    errors: dict[str, ClusterctlError] = {}
    with python.start(transport, PROGRAM, asked, sudo=True) as channel:
        channel.settimeout(SILENCE)
        try:
            for line in lines(channel):
                said = json.loads(line)
                if "have" in said:
                    told(said["have"])
                elif "done" in said:
                    found[by_path[said["done"]].path] = Hashed(
                        said["sha256"], tuple(said["pieces"])
                    )
                elif "refused" in said:
                    named = {"x-error-code": said["code"], "x-error-message": said["message"]}
                    url = by_path[said["refused"]].url
                    error = refusal_of_file(hub, listing, url, said["status"], named)
                    errors[error.summary] = error
                elif "failed" in said:
                    text = f"{by_path[said['failed']].path} did not arrive: {said['text']}"
                    errors[text] = StepFailed(text, host=transport.host.name)
        except TimeoutError:
            raise CommandTimedOut(
                f"the download reported nothing for {SILENCE:.0f} s",
                host=transport.host.name,
                hint="run the same command again: it resumes where it stopped",
            ) from None
        except MALFORMED as error:
            raise StepFailed(
                "the download's report cannot be read", host=transport.host.name, detail=repr(error)
            ) from error
        raise_all(errors.values())
        if len(found) < len(listing.files):
            raise python.failure(channel, "the download", transport.host.name)
    return found


def _credentials(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in CREDENTIALS}
