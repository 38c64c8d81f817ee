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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter, gib
from clusterctl.errors import StepFailed
from clusterctl.transfer import manifests
from clusterctl.transfer.archives.split import clean
from clusterctl.transfer.blob_store import ROOM, BlobStore, disk_errors
from clusterctl.transfer.content import Blob, ImageContent, ImageSource

AT_ONCE = 4  # Layers compressed in parallel, at most one per processor

GZIP_LAYER = f"{manifests.OCI_LAYER}+gzip"
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
        packed |= _compress(rest.values(), source, store, say)
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
    config = replace(content.config, media_type=manifests.OCI_CONFIG)
    compressed = replace(
        content,
        manifest=manifests.made_manifest(config, layers),
        media_type=manifests.OCI_MANIFEST,
        config=config,
        layers=tuple(layers),
    )
    original = {blob.digest for blob in content.blobs} - packed.keys()
    return CompressedImage(compressed, source, store, frozenset(original))


@dataclass(frozen=True)
class CompressedImage:
    """An image with compressed layers from the store and all other blobs from its source."""

    content: ImageContent
    source: ImageSource
    store: BlobStore
    original: frozenset[str]  # Digests of the blobs that the source has

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        holder = self.source if blob.digest in self.original else self.store
        return holder.open(blob, offset)


def _compress(
    layers: Collection[Blob], source: ImageSource, store: BlobStore, say: Say
) -> dict[str, Blob]:
    """Compress `layers` of `source` in parallel into `store`; return the compressed blobs by the
    digests of the originals. Ctrl-C, or a layer that fails, stops all of them within one chunk."""
    total = sum(layer.size for layer in layers)
    meter = Meter(lambda text: say(f"compressing layers: {text}"), total)
    counting, stopped = threading.Lock(), threading.Event()

    def compressed(layer: Blob) -> tuple[str, Blob]:
        # Level 1 for speed; no time stamp, so that the result is always the same.
        packer, hashed = zlib.compressobj(level=1, wbits=31), hashlib.sha256()
        with disk_errors(store.directory), _temporary_file(store.blobs) as file:

            def write(data: bytes) -> None:
                hashed.update(data)
                file.write(data)

            for chunk in source.open(layer):
                if stopped.is_set():
                    raise StepFailed("compression stopped: another layer failed")
                with counting:
                    meter.reached(meter.bytes + len(chunk))
                write(packer.compress(chunk))
            write(packer.flush())
            file.flush()
            os.fsync(file.fileno())
            blob = Blob(f"sha256:{hashed.hexdigest()}", file.tell(), GZIP_LAYER)
            Path(file.name).rename(store.path(blob.digest))
        store.remember(_record(layer), {"digest": blob.digest, "size": blob.size})
        return layer.digest, blob

    pool = ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1), "compress")
    try:
        return dict(pool.map(compressed, layers))
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


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
        if layer.media_type in manifests.PLAIN_LAYERS and (lacking is None or diff_id in lacking)
    ]
