"""An image in a file or directory: OCI layout, or docker archive, as `docker save` writes it."""

from __future__ import annotations

from pathlib import Path

from clusterctl.containers.driver import Say
from clusterctl.distribution.blob_store import BlobStore
from clusterctl.distribution.location import LocalImage


def archive_image(
    path: Path, store: BlobStore, *, reference: str | None, platform: str | None, say: Say
) -> LocalImage:
    """The image `reference` of what `path` holds; its only one where that is None, or where the
    archive says no names. `platform` (linux/amd64) chooses among several; None takes the only.

    Layers are read where they lie; a compressed tar is unpacked into `store` once. A blob's
    bytes are checked when they are read from the start. Raises RequirementsNotMet for what is
    no image, StepFailed naming the blob that is truncated, corrupt, or changed meanwhile.
    """
    raise NotImplementedError(path, store, reference, platform, say)
