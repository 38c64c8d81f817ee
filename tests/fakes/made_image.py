"""Small images with plain or gzip layers, made in memory: a source that counts what it gives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from clusterctl.transfer.bundle import blob_name, documents
from clusterctl.transfer.content import CHUNK, Blob, ImageContent

REFERENCE = "clusterctl-test/layered:1"
PLAIN = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass
class MadeImage:
    """A source of one image."""

    content: ImageContent
    blobs: dict[str, bytes]
    given: int = field(default=0)
    """Bytes of all blobs that were read."""

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        data = self.blobs[blob.digest]
        for start in range(offset, len(data), CHUNK):
            piece = data[start : start + CHUNK]
            self.given += len(piece)
            yield piece

    @property
    def config(self) -> bytes:
        return self.blobs[self.content.config.digest]

    def archive(self) -> bytes:
        """The image as `docker load` takes it, without a tag."""
        blobs = {blob_name(each.digest): self.blobs[each.digest] for each in self.content.blobs}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, data in {**documents([self.content], named=False), **blobs}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        return buffer.getvalue()


def layer(name: str, data: bytes) -> bytes:
    """A tar with one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def made_image(
    *layers: bytes, word: str = "one", packed: bool = False, platform: str = "linux/amd64"
) -> MadeImage:
    """No shell, no files but those of `layers`. `packed`: layers travel as gzip."""
    diff_ids = tuple(map(_digest, layers))
    sent = [gzip.compress(data, 1, mtime=0) if packed else data for data in layers]
    config = json.dumps(
        {
            "architecture": platform.partition("/")[2],
            "os": platform.partition("/")[0],
            "config": {"Env": [f"WORD={word}"], "Labels": {"made": "here"}},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": [{"created_by": "test"} for _ in layers],
        }
    ).encode()
    described = Blob(_digest(config), len(config), CONFIG)
    kind = f"{PLAIN}+gzip" if packed else PLAIN
    listed = tuple(Blob(_digest(data), len(data), kind) for data in sent)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _described(described),
            "layers": [_described(blob) for blob in listed],
        }
    ).encode()
    content = ImageContent(REFERENCE, manifest, MANIFEST, described, listed, diff_ids, platform)
    return MadeImage(content, {_digest(data): data for data in (config, *sent)})


def _described(blob: Blob) -> dict[str, object]:
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
