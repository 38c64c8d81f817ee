"""An image whose plain layers are compressed once, before they travel.

With gzip, which every engine unpacks. What is compressed already always travels as it is: to
unpack and compress it again would change its digest, and take longer than it saves.
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
from clusterctl.transfer.blob_store import BlobStore, disk_errors
from clusterctl.transfer.content import Blob, ImageContent, LocalImage, Location
from clusterctl.transfer.local_disk import ROOM
from clusterctl.transfer.manifests import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    PLAIN_LAYERS,
    made_manifest,
)

AT_ONCE = 4  # Layers that are compressed at a time, and no more than there are processors

GZIP_LAYER = f"{OCI_LAYER}+gzip"
DOCKER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def plain_size(image: LocalImage, lacking: Collection[str] | None = None) -> int:
    """Bytes of its plain layers; of those whose diff IDs are in `lacking`, when given."""
    return sum(layer.size for layer in _plain(image.content, lacking))


def compressed_image(
    source: LocalImage,
    store: BlobStore,
    *,
    say: Say,
    lacking: Collection[str] | None = None,
) -> LocalImage:
    """`source` with its plain layers compressed into `store`: same config and diff IDs, another
    manifest. What was compressed before is taken from there, as engines know it by its digest.

    `lacking`: diff IDs of the layers that will travel, None for all; others that were never
    compressed stay as they are. So do all where there may be no room: how much smaller they get
    shows only at the end.
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
        say(f"no room here to compress {gib(total)} of layers: they travel as they are; {ROOM}")
    if not packed:
        return source
    return CompressedImage(_with_layers(content, packed), source, store, frozenset(packed))


class CompressedImage:
    """Compressed layers from the store, the rest from where it was."""

    def __init__(
        self,
        content: ImageContent,
        source: LocalImage,
        store: BlobStore,
        replaced: frozenset[str],
    ) -> None:
        self.content = content
        self._source, self._store = source, store
        self._original = {blob.digest for blob in source.content.blobs} - replaced

    def location(self, blob: Blob) -> Location | None:
        return self._holder(blob).location(blob)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        return self._holder(blob).open(blob, offset)

    def _holder(self, blob: Blob) -> LocalImage | BlobStore:
        return self._source if blob.digest in self._original else self._store


class _Compression:
    """Compresses several layers at a time; Ctrl-C ends them all within a chunk."""

    def __init__(self, source: LocalImage, store: BlobStore, say: Say, total: int) -> None:
        self._source, self._store = source, store
        self._meter = Meter(lambda text: say(f"compressing layers: {text}"), total)
        self._counting = threading.Lock()
        self._count = 0
        self._stopped = threading.Event()

    def run(self, layers: Collection[Blob]) -> dict[str, Blob]:
        """By the digest that a layer had: what it has become."""
        pool = ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1), "compress")
        try:
            return dict(pool.map(self._compressed, layers))
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)

    def _compressed(self, layer: Blob) -> tuple[str, Blob]:
        # Level 1, without a time stamp: fast, and the result is always the same.
        packer, hashed = zlib.compressobj(level=1, wbits=31), hashlib.sha256()
        with disk_errors(self._store.directory), _temporary_file(self._store.blobs) as file:

            def write(data: bytes) -> None:
                hashed.update(data)
                file.write(data)

            for chunk in self._read(layer):
                write(packer.compress(chunk))
            write(packer.flush())
            file.flush()
            os.fsync(file.fileno())
            blob = Blob(f"sha256:{hashed.hexdigest()}", file.tell(), GZIP_LAYER)
            Path(file.name).rename(self._store.path(blob.digest))
        self._store.remember(_record(layer), {"digest": blob.digest, "size": blob.size})
        return layer.digest, blob

    def _read(self, layer: Blob) -> Iterator[bytes]:
        for chunk in self._source.open(layer):
            if self._stopped.is_set():
                raise StepFailed("compressing was given up: another layer failed")
            with self._counting:
                self._count += len(chunk)
                self._meter.reached(self._count)
            yield chunk


def _record(layer: Blob) -> str:
    """The name under which the store remembers what the layer was compressed to."""
    return f"gzip-{layer.hex}"


@contextmanager
def _temporary_file(directory: Path) -> Iterator[BinaryIO]:
    """Gone afterwards, unless it was renamed; `clean` removes what a killed run left."""
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


def _with_layers(content: ImageContent, packed: dict[str, Blob]) -> ImageContent:
    """The image with other layers. Its manifest is of one family: Docker's gzip gets its OCI
    name."""
    layers = [packed.get(layer.digest, layer) for layer in content.layers]
    layers = [
        replace(layer, media_type=GZIP_LAYER) if layer.media_type == DOCKER_GZIP else layer
        for layer in layers
    ]
    config = replace(content.config, media_type=OCI_CONFIG)
    return replace(
        content,
        manifest=made_manifest(config, layers),
        media_type=OCI_MANIFEST,
        config=config,
        layers=tuple(layers),
    )
