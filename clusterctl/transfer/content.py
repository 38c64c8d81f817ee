"""Blobs, and the images that consist of them.

A blob is identified by its digest, so it may come from any source: the receiver verifies it. Blobs
are passed on byte for byte, as their first source had them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 20  # Bytes read, hashed and passed on at a time


def is_digest(text: str) -> bool:
    """Return whether `text` has the form of `Blob.hex`: 64 hexadecimal digits."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


@dataclass(frozen=True)
class Blob:
    """Content that is identified by its digest, such as a layer, a config or a file."""

    digest: str  # `sha256:` and 64 hexadecimal digits
    size: int  # Bytes
    media_type: str = "application/octet-stream"

    @property
    def hex(self) -> str:
        return self.digest.partition(":")[2]


@dataclass(frozen=True)
class ImageContent:
    """An image for one platform: its manifest, byte for byte, and the blobs that it lists."""

    reference: str  # As users write it: vllm/vllm-openai:v0.33.0
    manifest: bytes
    media_type: str  # Of the manifest
    config: Blob
    layers: tuple[Blob, ...]  # In the manifest's order, the base first
    # Digests of the uncompressed layers, in the same order; engines report them as RootFS.Layers.
    diff_ids: tuple[str, ...]
    platform: str  # As in the image config: linux/amd64

    @property
    def blobs(self) -> tuple[Blob, ...]:
        return (self.config, *self.layers)

    @property
    def size(self) -> int:
        """Bytes to send to a host that has none of the blobs."""
        return sum(blob.size for blob in self.blobs)


class BlobSource(Protocol):
    """A source of blobs: a registry, an archive, a directory, an engine."""

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """Yield the blob's bytes from `offset` on, at most CHUNK at a time. Raises StepFailed, with
        a hint, when the source fails."""


class ImageSource(BlobSource, Protocol):
    """A source of one image."""

    @property
    def content(self) -> ImageContent: ...


@dataclass(frozen=True)
class Location:
    """`size` bytes of the file `path`, from byte `offset` on."""

    path: Path
    offset: int
    size: int
