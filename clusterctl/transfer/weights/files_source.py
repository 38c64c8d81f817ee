"""Serve the files of a hashed directory on this machine as blobs that a chain can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterctl.errors import StepFailed
from clusterctl.transfer.content import CHUNK, Blob, Location
from clusterctl.transfer.weights.hashing import Stamp, changed
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.tree import Tree, TreeFile


class FilesSource:
    """A BlobSource over a directory. Reading a file that changed since it was hashed raises
    StepFailed: hosts would reject its pieces one by one without knowing the reason."""

    def __init__(self, tree: Tree, manifest: Manifest) -> None:
        sources = {file.path: file for file in tree.files}
        self._files: dict[str, TreeFile] = {
            file.blob.digest: sources[file.path] for file in manifest.files
        }
        self._stamps = {digest: Stamp.of(file.source) for digest, file in self._files.items()}

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """See BlobSource."""
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

    def location(self, blob: Blob) -> Location | None:
        """Where the bytes are on disk; None for a blob that is not in this tree."""
        file = self._files.get(blob.digest)
        return Location(file.source, 0, blob.size) if file else None

    def changes(self) -> Sequence[StepFailed]:
        """Return an error for every file that was written to or removed since it was hashed."""
        return [
            changed(file.source) for digest, file in self._files.items() if not self._same(digest)
        ]

    def _same(self, digest: str) -> bool:
        try:
            return Stamp.of(self._files[digest].source) == self._stamps[digest]
        except OSError:
            return False
