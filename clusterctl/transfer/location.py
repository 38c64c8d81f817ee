"""Where a blob's bytes lie on this machine, so that they can be sent without passing through
Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clusterctl.transfer.content import Blob, ImageSource


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
