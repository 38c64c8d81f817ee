"""What hosts are to get: blobs, and the images that consist of them.

A blob is identified by its digest, so it can come from anywhere: whoever receives it checks it.
Blobs are passed on byte for byte, as their first source had them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 20  # Bytes that are read, hashed and passed on at a time


def is_digest(text: str) -> bool:
    """Whether it is a sha256 as `Blob.hex` has it: 64 hexadecimal digits."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


@dataclass(frozen=True)
class Blob:
    """One run of bytes."""

    digest: str  # `sha256:` and 64 hexadecimal digits
    size: int  # Bytes
    media_type: str = "application/octet-stream"

    @property
    def hex(self) -> str:
        return self.digest.partition(":")[2]


@dataclass(frozen=True)
class ImageContent:
    """An image for one platform: the manifest, byte for byte, and what it names."""

    reference: str  # What users call it: vllm/vllm-openai:v0.33.0
    manifest: bytes
    media_type: str  # Of the manifest
    config: Blob
    layers: tuple[Blob, ...]  # As the manifest lists them, the base first
    # Digests of the unpacked layers, in the same order: RootFS.Layers on every host.
    diff_ids: tuple[str, ...]
    platform: str  # As the image config says it: linux/amd64

    @property
    def blobs(self) -> tuple[Blob, ...]:
        return (self.config, *self.layers)

    @property
    def size(self) -> int:
        """Bytes to bring to a host that has nothing of it."""
        return sum(blob.size for blob in self.blobs)


class BlobSource(Protocol):
    """Somewhere blobs can be read from: a registry, an archive, a directory, an engine."""

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """The blob's bytes from `offset` on, in pieces of at most CHUNK. Raises StepFailed
        when the source fails, with what to do."""


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


class LocalImage(ImageSource, Protocol):
    """An image whose blobs are files of this machine, or become that while they arrive."""

    def location(self, blob: Blob) -> Location | None:
        """None while the blob is not all there, and for what this image does not have."""
