"""A model that comes from a hub to this machine, and goes on to hosts while it comes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed, raise_all
from clusterctl.transfer.amounts import gib
from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.content import Blob
from clusterctl.transfer.local_disk import SPARE, cache_directory, free_space
from clusterctl.transfer.weights.download import AT_ONCE, Downloads
from clusterctl.transfer.weights.hub import HubFile, Listing
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, in_order

MODE = 0o644
"""Of what comes from a hub; git keeps no other, but for programs."""


def download_directory(listing: Listing) -> Path:
    """Where a model waits here until hosts have it; another run finds it there."""
    model = listing.model_id.replace("/", "--")
    revision = listing.revision.replace("/", "-")
    return cache_directory() / "models" / f"{listing.hub}--{model}@{revision}"


class Arriving:
    """A BlobSource over downloads: a blob can be read from the first byte on that came.

    Small files come first and whole (`begin`), since hubs tell of some only git's hash. A large
    one starts when it is first asked for: what all hosts have already never comes.
    """

    def __init__(self, listing: Listing, name: str, downloads: Downloads) -> None:
        self._listing, self._name, self._downloads = listing, name, downloads
        self._large = [file for file in listing.files if file.sha256 and file.size > PIECE]
        self._small = [file for file in listing.files if file not in self._large]
        self._files: dict[str, HubFile] = {}
        self._pool = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="download")
        self._begun: dict[str, Future[None]] = {}
        self._beginning = threading.Lock()

    def begin(self) -> Manifest:
        """Get the small files; what is known of the model then. Large files have no hashes of
        pieces yet. Raises what the hub says."""
        self._downloads.run(self._small)
        self._downloads.expect(self._large)
        manifest = self._manifest()
        by_path = {file.path: file for file in self._listing.files}
        self._files = {each.blob.digest: by_path[each.path] for each in manifest.files}
        return manifest

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """See BlobSource."""
        file = self._files[blob.digest]
        with self._beginning:
            if file in self._large and file.path not in self._begun:
                self._begun[file.path] = self._pool.submit(self._downloads.run, [file])
        return self._downloads.read(file, offset)

    def complete(self) -> Manifest:
        """With the hashes of pieces of all that came; waits for what is under way."""
        wait(self._begun.values())
        raise_all(self.trouble())
        return self._manifest()

    def trouble(self) -> Sequence[ClusterctlError]:
        """Why the hub's bytes do not come any more."""
        ended = [future.exception() for future in self._begun.values() if future.done()]
        return [error for error in ended if isinstance(error, ClusterctlError)]

    def stop(self) -> None:
        """End what still comes."""
        self._downloads.stop()
        self._pool.shutdown(cancel_futures=True)

    def _manifest(self) -> Manifest:
        files = [self._described(file) for file in self._listing.files]
        return Manifest(self._name, in_order(files), origin=self._listing.origin)

    def _described(self, file: HubFile) -> WeightFile:
        if file in self._large and file.path not in self._begun:
            return WeightFile(file.path, file.size, MODE, file.sha256)
        hashed = self._downloads.hashed(file)
        return WeightFile(file.path, file.size, MODE, hashed.sha256, hashed.chunks)


def foreseen(listing: Listing, name: str) -> Manifest:
    """What the manifest will look like, for a plan: small files have git's hash in place of
    their own, so that no host can have them."""
    files = [
        WeightFile(file.path, file.size, MODE, file.sha256 or file.git_sha1.zfill(64))
        for file in listing.files
    ]
    return Manifest(name, in_order(files), origin=listing.origin)


def require_room(listing: Listing, directory: Path) -> None:
    """Raises RequirementsNotMet when this machine cannot hold the model on its way."""
    had = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    needed = listing.size - had + SPARE
    free = free_space(directory)
    if needed > free:
        raise RequirementsNotMet(
            f"{listing.model_id} needs {gib(needed)} on this machine on its way, and "
            f"{gib(free)} are free in {directory}",
            hint="set XDG_CACHE_HOME to a directory on a larger disk, or let a host get it: "
            "clusterctl model pull ... --on HOST",
        )


def clear(directory: Path) -> None:
    """Take away what came, now that hosts have it. Raises StepFailed."""
    try:
        if directory.exists():
            shutil.rmtree(directory)
    except OSError as error:
        raise StepFailed(
            f"{directory} cannot be removed: {error.strerror}", hint=f"rm -r {directory}"
        ) from error
