"""A model that comes from a hub to this machine, and goes on to hosts while it comes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.distribution.blob_store import store_directory
from clusterctl.distribution.chain_link import PIECE
from clusterctl.distribution.content import Blob
from clusterctl.distribution.weights.download import Downloads
from clusterctl.distribution.weights.hub import HubFile, Listing
from clusterctl.distribution.weights.manifest import Manifest, WeightFile, in_order
from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed

MODE = 0o644
"""Of what comes from a hub; git keeps no other, but for programs."""

SPARE = 256 << 20
"""Bytes to be left free on this machine's disk."""


def download_directory(listing: Listing) -> Path:
    """Where a model waits here until hosts have it; another run finds it there."""
    model = listing.model_id.replace("/", "--")
    revision = listing.revision.replace("/", "-")
    return store_directory() / "models" / f"{listing.hub}--{model}@{revision}"


class Arriving:
    """A BlobSource over downloads: a blob can be read from the first byte on that came.

    Small files come first and whole (`begin`), since hubs tell of some only git's hash; the
    rest starts with the first blob that is asked for.
    """

    def __init__(self, listing: Listing, name: str, downloads: Downloads) -> None:
        self._listing, self._name, self._downloads = listing, name, downloads
        self._rest = [file for file in listing.files if file.sha256 and file.size > PIECE]
        self._first = [file for file in listing.files if file not in self._rest]
        self._files: dict[str, HubFile] = {}
        self._thread = threading.Thread(target=self._run, name="download", daemon=True)
        self._starting = threading.Lock()
        self._error: ClusterctlError | None = None

    def begin(self) -> Manifest:
        """Get the small files; what is known of the model then. Large files have no hashes of
        pieces yet. Raises what the hub says."""
        self._downloads.run(self._first)
        self._downloads.expect(self._rest)
        known = [self._hashed(file) for file in self._first]
        known += [WeightFile(f.path, f.size, MODE, f.sha256) for f in self._rest]
        by_path = {file.path: file for file in self._listing.files}
        self._files = {each.blob.digest: by_path[each.path] for each in known}
        return self._manifest(known)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """See BlobSource."""
        with self._starting:
            if not self._thread.ident:
                self._thread.start()
        return self._downloads.read(self._files[blob.digest], offset)

    def complete(self) -> Manifest:
        """With the hashes of all pieces, once everything is here; waits for that if hosts had
        no need of some file."""
        if self._thread.ident:
            self._thread.join()
        else:
            self._run()
        if self._error:
            raise self._error
        return self._manifest([self._hashed(file) for file in self._listing.files])

    def trouble(self) -> Sequence[ClusterctlError]:
        """Why the hub's bytes do not come any more."""
        return [self._error] if self._error else []

    def stop(self) -> None:
        """End what still comes."""
        self._downloads.stop()
        if self._thread.ident:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            self._downloads.run(self._rest)
        except ClusterctlError as error:
            self._error = error

    def _hashed(self, file: HubFile) -> WeightFile:
        hashed = self._downloads.hashed(file)
        return WeightFile(file.path, file.size, MODE, hashed.sha256, hashed.chunks)

    def _manifest(self, files: Sequence[WeightFile]) -> Manifest:
        return Manifest(self._name, in_order(files), origin=self._listing.origin)


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
    there = directory
    while not there.exists():
        there = there.parent
    had = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    needed = listing.size - had + SPARE
    free = shutil.disk_usage(there).free
    if needed > free:
        raise RequirementsNotMet(
            f"{listing.model_id} needs {needed / 2**30:.1f} GiB on this machine on its way, and "
            f"{free / 2**30:.1f} GiB are free in {there}",
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
