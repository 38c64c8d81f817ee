"""An image all of whose blobs are in the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import Blob, ImageContent
from clusterctl.transfer.location import Location


@dataclass(frozen=True)
class StoredImage:
    content: ImageContent
    store: BlobStore

    def location(self, blob: Blob) -> Location | None:
        return self.store.location(blob)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        return self.store.open(blob, offset)
