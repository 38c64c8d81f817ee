"""An image that a Docker engine has: `docker save`, split into blobs while it streams."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusterctl.containers.driver import ContainerDriver, Image, Say
from clusterctl.distribution.blob_store import BlobStore
from clusterctl.distribution.content import ImageContent
from clusterctl.distribution.location import LocalImage


@dataclass(frozen=True)
class HostImage:
    """An image whose blobs are files of a host."""

    content: ImageContent
    paths: Mapping[str, str]
    """Digest: file on that host. Blobs that were not to be kept are not in it."""


def engine_image(
    driver: ContainerDriver, image: Image, reference: str, store: BlobStore, *, say: Say
) -> LocalImage:
    """`image` of the operator's own engine, saved into `store`; not again while it is there.

    Raises StepFailed, with the engine's words.
    """
    raise NotImplementedError(driver, image, reference, store, say)


def save_on_host(
    driver: ContainerDriver,
    image: Image,
    reference: str,
    directory: str,
    *,
    say: Say,
    keep: Collection[str] | None = None,
) -> HostImage:
    """Save `image` on its host into `directory`/sha256/<digits>; not again while it is there.

    `keep`: diff IDs of the layers to keep, None for all; the others are only measured. Needs
    python3 >= 3.6 there. Raises RequirementsNotMet (room, Python), StepFailed.
    """
    raise NotImplementedError(driver, image, reference, directory, say, keep)
