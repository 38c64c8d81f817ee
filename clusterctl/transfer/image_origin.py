"""Where an image comes from: a source on the operator's machine, or a host that has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.reference import tagged
from clusterctl.errors import StepFailed
from clusterctl.transfer.content import BlobSource, ImageContent
from clusterctl.transfer.engine_image import HostImage, save_on_host
from clusterctl.transfer.engine_stock import EngineStock, HeldImage, settings
from clusterctl.transfer.image_load import HostBlobs
from clusterctl.transfer.image_plan import Wanted
from clusterctl.transfer.load_archive import manifest_digest
from clusterctl.transfer.location import LocalImage
from clusterctl.transfer.overlay_image import overlay_image

# Where a host that heads a chain keeps the layers that others lack, for as long as it takes.
SAVED = "/var/cache/clusterctl/saved"


@dataclass(frozen=True)
class Supply:
    """An image that is ready to be sent."""

    content: ImageContent
    blobs: BlobSource  # What is lacking, to be read here
    # The host that heads the chain, when it is not this machine that does.
    holder: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)  # By digest: files on the holder


class Origin(Protocol):
    """Where an image comes from."""

    @property
    def name(self) -> str:
        """For people: gpu1, bundle.tar, its registry."""

    @property
    def holder(self) -> str | None:
        """The host that has it, when it comes from one."""

    @property
    def wanted(self) -> Wanted: ...

    @property
    def content(self) -> ImageContent | None:
        """None when it is known only once the image is read, by `supply`."""

    def supply(self, lacking: Collection[str], say: Say) -> Supply:
        """Make it ready. `lacking`: diff IDs of the layers that hosts lack."""

    def clear(self) -> None:
        """Remove what `supply` left for the time of the sending."""


def wanted_from(content: ImageContent, config: bytes, reference: str) -> Wanted:
    """What hosts are to have as `reference`, by an image whose content is known."""
    return Wanted(
        tagged(reference),
        content.diff_ids,
        frozenset({content.config.digest, manifest_digest(content)}),
        settings(json.loads(config).get("config")),
    )


# Gives an image as it will travel: with those of its plain layers compressed that hosts lack (by
# diff ID), where that is worth it. Raises RequirementsNotMet where this machine has no room.
Coded = Callable[[LocalImage, Collection[str], Say], LocalImage]


def as_it_is(image: LocalImage, lacking: Collection[str], say: Say) -> LocalImage:
    del lacking, say
    return image


class LocalOrigin:
    """An image that this machine can read: from a registry, or out of an archive."""

    holder = None

    def __init__(
        self,
        name: str,
        image: LocalImage,
        reference: str,
        *,
        coded: Coded = as_it_is,
    ) -> None:
        self.name = name
        self._image, self._coded = image, coded
        self.content = image.content
        config = b"".join(image.open(image.content.config))
        self.wanted = wanted_from(image.content, config, reference)

    def supply(self, lacking: Collection[str], say: Say) -> Supply:
        image = self._coded(self._image, lacking, say)
        return Supply(image.content, image)

    def clear(self) -> None:
        """It leaves nothing: the store is a cache."""


class EngineOrigin:
    """An image that Docker on this machine has: read out of it when it is to be sent."""

    holder = None
    content = None

    def __init__(
        self,
        held: HeldImage,
        reference: str,
        save: Callable[[Say], LocalImage],
        *,
        coded: Coded = as_it_is,
    ) -> None:
        self.name = "Docker on this machine"
        self.wanted = wanted_held(held, reference)
        self._save, self._coded = save, coded

    def supply(self, lacking: Collection[str], say: Say) -> Supply:
        image = self._coded(self._save(say), lacking, say)
        return Supply(image.content, image)

    def clear(self) -> None:
        """It leaves nothing: the store is a cache."""


class HostOrigin:
    """An image that a host has: that host then heads the chain, and no byte of a layer passes
    through this machine."""

    content = None

    def __init__(
        self,
        driver: ContainerDriver,
        stock: EngineStock,
        held: HeldImage,
        reference: str,
        directory: str = SAVED,
    ) -> None:
        self.name = driver.host
        self.holder = driver.host
        self.wanted = wanted_held(held, reference)
        self._driver, self._stock, self._held = driver, stock, held
        self._directory = directory

    def supply(self, lacking: Collection[str], say: Say) -> Supply:
        found = self._read(lacking, say) or self._saved(lacking, say)
        return Supply(found.content, HostBlobs(self._driver, found.paths), self.holder, found.paths)

    def _read(self, lacking: Collection[str], say: Say) -> HostImage | None:
        reference = self.wanted.reference
        return overlay_image(
            self._driver, self._stock, self._held, reference, self._directory, lacking, say
        )

    def _saved(self, lacking: Collection[str], say: Say) -> HostImage:
        image = self._driver.image(self._held.id)
        if image is None:
            raise StepFailed(
                f"{self.wanted.reference} is gone from this host",
                host=self.name,
                hint="run the same command again",
            )
        reference = self.wanted.reference
        return save_on_host(self._driver, image, reference, self._directory, say=say, keep=lacking)

    def clear(self) -> None:
        self._driver.host_run(["rm", "-rf", self._directory])


def wanted_held(held: HeldImage, reference: str) -> Wanted:
    """What hosts are to have, by the image that one of them has."""
    return Wanted(tagged(reference), held.layers, frozenset({held.id}), held.settings)
