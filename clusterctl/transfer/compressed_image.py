"""An image whose uncompressed layers are compressed once, before they are sent.

With gzip, which every engine unpacks. Layers that are already compressed are sent unchanged:
recompressing them would change their digests, and take longer than it saves.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter, gib
from clusterctl.errors import StepFailed
from clusterctl.transfer.archives.split import clean
from clusterctl.transfer.blob_store import ROOM, BlobStore, disk_errors
from clusterctl.transfer.content import Blob, ImageContent, ImageSource
from clusterctl.transfer.manifests import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    PLAIN_LAYERS,
    made_manifest,
)

AT_ONCE = 4  # Layers compressed in parallel, at most one per processor

GZIP_LAYER = f"{OCI_LAYER}+gzip"
DOCKER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def plain_size(image: ImageSource, lacking: Collection[str] | None = None) -> int:
    """Return the bytes of the uncompressed layers; with `lacking`, only of those diff IDs."""
    return sum(layer.size for layer in _plain(image.content, lacking))


def compressed_image(
    source: ImageSource,
    store: BlobStore,
    *,
    say: Say,
    lacking: Collection[str] | None = None,
) -> ImageSource:
    """Return `source` with uncompressed layers compressed into `store`: same config and diff IDs,
    another manifest. Earlier results are reused, as engines know layers by their digests.

    `lacking`: diff IDs of the layers that will be sent, None for all; other layers are replaced
    only by earlier results. If the store's disk may be too small, no layer is compressed: the
    compressed size is known only at the end.
    """
    content = source.content
    packed = {}
    for layer in _plain(content, None):
        known = store.recall(_record(layer))
        if isinstance(known, dict):
            blob = Blob(str(known["digest"]), int(known["size"]), GZIP_LAYER)
            if store.holds(blob):
                packed[layer.digest] = blob
    rest = {layer.digest: layer for layer in _plain(content, lacking) if layer.digest not in packed}
    total = sum(layer.size for layer in rest.values())
    if store.has_room(total):
        packed |= _Compression(source, store, say, total).run(rest.values())
    else:
        say(f"no room here to compress {gib(total)} of layers: sending them uncompressed; {ROOM}")
    if not packed:
        return source
    layers = [packed.get(layer.digest, layer) for layer in content.layers]
    # The manifest is an OCI one: Docker's media type of gzip layers becomes the OCI type.
    layers = [
        replace(layer, media_type=GZIP_LAYER) if layer.media_type == DOCKER_GZIP else layer
        for layer in layers
    ]
    config = replace(content.config, media_type=OCI_CONFIG)
    compressed = replace(
        content,
        manifest=made_manifest(config, layers),
        media_type=OCI_MANIFEST,
        config=config,
        layers=tuple(layers),
    )
    return CompressedImage(compressed, source, store, frozenset(packed))


class CompressedImage:
    """An image with compressed layers from the store and all other blobs from its source."""

    def __init__(
        self,
        content: ImageContent,
        source: ImageSource,
        store: BlobStore,
        replaced: frozenset[str],
    ) -> None:
        self.content = content
        self._source, self._store = source, store
        self._original = {blob.digest for blob in source.content.blobs} - replaced

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        holder = self._source if blob.digest in self._original else self._store
        return holder.open(blob, offset)


class _Compression:
    """Compresses several layers in parallel; Ctrl-C stops all of them within one chunk."""

    def __init__(self, source: ImageSource, store: BlobStore, say: Say, total: int) -> None:
        self._source, self._store = source, store
        self._meter = Meter(lambda text: say(f"compressing layers: {text}"), total)
        self._counting = threading.Lock()
        self._count = 0
        self._stopped = threading.Event()

    def run(self, layers: Collection[Blob]) -> dict[str, Blob]:
        """Compress `layers`; return the compressed blobs by the digests of the originals."""
        pool = ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1), "compress")
        try:
            return dict(pool.map(self._compressed, layers))
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)

    def _compressed(self, layer: Blob) -> tuple[str, Blob]:
        # Level 1 for speed; no time stamp, so that the result is always the same.
        packer, hashed = zlib.compressobj(level=1, wbits=31), hashlib.sha256()
        with disk_errors(self._store.directory), _temporary_file(self._store.blobs) as file:

            def write(data: bytes) -> None:
                hashed.update(data)
                file.write(data)

            for chunk in self._source.open(layer):
                if self._stopped.is_set():
                    raise StepFailed("compression stopped: another layer failed")
                with self._counting:
                    self._count += len(chunk)
                    self._meter.reached(self._count)
                write(packer.compress(chunk))
            write(packer.flush())
            file.flush()
            os.fsync(file.fileno())
            blob = Blob(f"sha256:{hashed.hexdigest()}", file.tell(), GZIP_LAYER)
            Path(file.name).rename(self._store.path(blob.digest))
        self._store.remember(_record(layer), {"digest": blob.digest, "size": blob.size})
        return layer.digest, blob


def _record(layer: Blob) -> str:
    """Name of the store's record of the layer's compressed form."""
    return f"gzip-{layer.hex}"


@contextmanager
def _temporary_file(directory: Path) -> Iterator[BinaryIO]:
    """Create a file, removed on exit unless renamed; `clean` removes those of killed runs."""
    directory.mkdir(parents=True, exist_ok=True)
    clean(str(directory))
    prefix = f"save-{os.getpid()}-"
    with tempfile.NamedTemporaryFile(
        dir=directory, prefix=prefix, suffix=".part", delete=False
    ) as file:
        try:
            yield file  # type: ignore[misc]
        finally:
            Path(file.name).unlink(missing_ok=True)


def _plain(content: ImageContent, lacking: Collection[str] | None) -> list[Blob]:
    pairs = zip(content.layers, content.diff_ids, strict=True)
    return [
        layer
        for layer, diff_id in pairs
        if layer.media_type in PLAIN_LAYERS and (lacking is None or diff_id in lacking)
    ]
