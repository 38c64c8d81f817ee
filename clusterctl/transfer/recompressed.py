"""An image whose plain layers are compressed once, before they travel."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter
from clusterctl.errors import StepFailed
from clusterctl.transfer.amounts import gib
from clusterctl.transfer.archives.split import clean
from clusterctl.transfer.blob_store import BlobStore, disk_errors
from clusterctl.transfer.codec import Codec
from clusterctl.transfer.content import CHUNK, Blob, ImageContent
from clusterctl.transfer.local_disk import ROOM
from clusterctl.transfer.location import LocalImage, Location
from clusterctl.transfer.manifests import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    PLAIN_LAYERS,
    made_manifest,
)

AT_ONCE = 4  # Layers that are compressed at a time, and no more than there are processors

DOCKER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def plain_size(image: LocalImage, lacking: Collection[str] | None = None) -> int:
    """Bytes of its plain layers; of those whose diff IDs are in `lacking`, when given."""
    return sum(layer.size for layer in _plain(image.content, lacking))


def recompressed(
    source: LocalImage,
    codec: Codec,
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
    if codec is Codec.PLAIN or not _plain(content, None):
        return source
    packed = _packed_before(_plain(content, None), codec, store)
    rest = {layer.digest: layer for layer in _plain(content, lacking) if layer.digest not in packed}
    total = sum(layer.size for layer in rest.values())
    if store.has_room(total):
        packed |= _Work(source, codec, store, say, total).all_of(rest.values())
    else:
        say(f"no room here to compress {gib(total)} of layers: they travel as they are; {ROOM}")
    if not packed:
        return source
    return RecompressedImage(_with_layers(content, packed), source, store, frozenset(packed))


class RecompressedImage:
    """Packed layers from the store, the rest from where it was."""

    def __init__(
        self,
        content: ImageContent,
        source: LocalImage,
        store: BlobStore,
        replaced: frozenset[str],
    ) -> None:
        self._content, self._source, self._store = content, source, store
        known = {blob.digest for blob in source.content.blobs} - replaced
        self._original = known

    @property
    def content(self) -> ImageContent:
        return self._content

    def location(self, blob: Blob) -> Location | None:
        return self._holder(blob).location(blob)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        return self._holder(blob).open(blob, offset)

    def _holder(self, blob: Blob) -> LocalImage | BlobStore:
        return self._source if blob.digest in self._original else self._store


class _Work:
    """Layers being packed, several at a time; Ctrl-C ends them all within a chunk."""

    def __init__(
        self, source: LocalImage, codec: Codec, store: BlobStore, say: Say, total: int
    ) -> None:
        self._source, self._codec, self._store = source, codec, store
        self._meter = Meter(lambda text: say(f"compressing layers: {text}"), total)
        self._counting = threading.Lock()
        self._count = 0
        self._stopped = threading.Event()

    def all_of(self, layers: Collection[Blob]) -> dict[str, Blob]:
        """By the digest that a layer had: what it has become."""
        crew = ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1), "compress")
        try:
            return dict(crew.map(self._packed, layers))
        finally:
            self._stopped.set()
            crew.shutdown(cancel_futures=True)

    def _packed(self, layer: Blob) -> tuple[str, Blob]:
        blob = self._pack(layer)
        known = {"digest": blob.digest, "size": blob.size}
        self._store.remember(_record(layer, self._codec), known)
        return layer.digest, blob

    def _pack(self, layer: Blob) -> Blob:
        with disk_errors(self._store.directory), _fresh_file(self._store.blobs) as file:
            PACKERS[self._codec](self._read(layer), file)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            digest = _digits(file)
            size = os.fstat(file.fileno()).st_size
            Path(file.name).rename(self._store.path(digest))
        return Blob(f"sha256:{digest}", size, _media_type(self._codec))

    def _read(self, layer: Blob) -> Iterator[bytes]:
        for chunk in self._source.open(layer):
            if self._stopped.is_set():
                raise StepFailed("compressing was given up: another layer failed")
            with self._counting:
                self._count += len(chunk)
                self._meter.reached(self._count)
            yield chunk


def _packed_before(layers: Iterable[Blob], codec: Codec, store: BlobStore) -> dict[str, Blob]:
    """By the digest that a layer had: what an earlier run made of it."""
    known = {layer.digest: _recalled(layer, codec, store) for layer in layers}
    return {digest: blob for digest, blob in known.items() if blob is not None}


def _recalled(layer: Blob, codec: Codec, store: BlobStore) -> Blob | None:
    known = store.recall(_record(layer, codec))
    if not isinstance(known, dict):
        return None
    blob = Blob(str(known["digest"]), int(known["size"]), _media_type(codec))
    return blob if store.holds(blob) else None


def _record(layer: Blob, codec: Codec) -> str:
    """The name under which the store remembers what it was packed to."""
    return f"{codec}-{layer.hex}"


def _media_type(codec: Codec) -> str:
    return f"{OCI_LAYER}+{codec}"


def _gzip(chunks: Iterable[bytes], file: BinaryIO) -> None:
    """Level 1, without a time stamp: Docker 20.10 unpacks it, and it is always the same."""
    packer = zlib.compressobj(level=1, wbits=31)
    file.writelines(packer.compress(chunk) for chunk in chunks)
    file.write(packer.flush())


def _zstd(chunks: Iterable[bytes], file: BinaryIO) -> None:
    """Level 3; with -T its output is the same for any number of threads."""
    argv = ["zstd", "-q", "-3", "-T2", "-c"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=file) as process:
        try:
            if process.stdin:
                for chunk in chunks:
                    process.stdin.write(chunk)
        except BrokenPipeError:
            pass  # its status says more
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise StepFailed(f"zstd ended with status {process.returncode}", hint="zstd --version")


PACKERS: dict[Codec, Callable[[Iterable[bytes], BinaryIO], None]] = {
    Codec.GZIP: _gzip,
    Codec.ZSTD: _zstd,
}


def _digits(file: BinaryIO) -> str:
    hashed = hashlib.sha256()
    while chunk := file.read(CHUNK):
        hashed.update(chunk)
    return hashed.hexdigest()


@contextmanager
def _fresh_file(directory: Path) -> Iterator[BinaryIO]:
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
    layers = tuple(_oci(packed.get(layer.digest, layer)) for layer in content.layers)
    config = replace(content.config, media_type=OCI_CONFIG)
    manifest = made_manifest(config, layers)
    return replace(
        content, manifest=manifest, media_type=OCI_MANIFEST, config=config, layers=layers
    )


def _oci(layer: Blob) -> Blob:
    """Docker's type for gzip by its OCI name: a manifest is of one family."""
    return (
        replace(layer, media_type=f"{OCI_LAYER}+gzip") if layer.media_type == DOCKER_GZIP else layer
    )
