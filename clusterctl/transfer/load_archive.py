"""The archive that `docker load` takes: an image with as many of its layers as are sent along.

It is an OCI layout and a docker archive in one. Engines pass over a layer that is missing from
it when they have its chain of layers already: overlay2 since Docker 1.10, the containerd store
since 25 (moby, image/tarexport/load.go, daemon/containerd/image_exporter.go).
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping

from clusterctl.errors import StepFailed
from clusterctl.transfer.content import Blob, BlobSource, ImageContent

_BLOCK = 512


def blob_name(digest: str) -> str:
    """Where a blob is in the archive."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def manifest_digest(content: ImageContent) -> str:
    return f"sha256:{hashlib.sha256(content.manifest).hexdigest()}"


def documents(content: ImageContent, config: bytes) -> dict[str, bytes]:
    """Everything but the layers: path in the archive to bytes. It names no tag, as what is
    loaded gets its name once it was looked at."""
    digest = manifest_digest(content)
    described = {"mediaType": content.media_type, "digest": digest, "size": len(content.manifest)}
    layers = [blob_name(layer.digest) for layer in content.layers]
    listed = {"Config": blob_name(content.config.digest), "RepoTags": None, "Layers": layers}
    return {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [described]}).encode(),
        "manifest.json": json.dumps([listed]).encode(),
        blob_name(content.config.digest): config,
        blob_name(digest): content.manifest,
    }


def skeleton(content: ImageContent, config: bytes, paths: Mapping[str, str]) -> bytes:
    """A small tar of the documents, with a symbolic link in place of each layer of `paths`
    (digest to the file on the host): `tar --dereference` there makes the archive of it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in documents(content, config).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for digest, path in paths.items():
            entry = tarfile.TarInfo(blob_name(digest))
            entry.type, entry.linkname = tarfile.SYMTYPE, path
            tar.addfile(entry)
    return buffer.getvalue()


def archive(content: ImageContent, layers: Collection[Blob], source: BlobSource) -> Iterator[bytes]:
    """The archive's bytes, with these layers of it, read from `source` one after the other."""
    config = b"".join(source.open(content.config))
    for name, data in documents(content, config).items():
        yield from member(name, len(data), (data,))
    for layer in layers:
        yield from member(blob_name(layer.digest), layer.size, source.open(layer))
    yield bytes(2 * _BLOCK)


def archive_size(layers: Iterable[Blob]) -> int:
    """About the bytes of an archive with these layers."""
    return sum(layer.size for layer in layers)


def member(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A file of a tar: the same bytes whenever it is written."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    yield entry.tobuf(tarfile.GNU_FORMAT)
    count = 0
    for chunk in chunks:
        count += len(chunk)
        yield chunk
    if count != size:
        raise StepFailed(f"{name} has {count} bytes where {size} were promised")
    yield bytes(-size % _BLOCK)
