"""Origins of an image: a host that has it, an archive, Docker on this machine, or its registry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol

from clusterctl.containers.driver import ContainerDriver, EngineUnavailable, Say
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.meter import gib
from clusterctl.containers.reference import tagged
from clusterctl.engine.step import Unknown
from clusterctl.errors import ClusterctlError, StepFailed, UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.compressed_image import compressed_image, plain_size
from clusterctl.transfer.content import BlobSource, ImageContent, LocalImage
from clusterctl.transfer.engine_image import HostImage, engine_image, save_on_host
from clusterctl.transfer.engine_state import EngineState, HeldImage, inspect_engine, settings
from clusterctl.transfer.image_load import HostBlobs, manifest_digest
from clusterctl.transfer.image_plan import WantedImage
from clusterctl.transfer.overlay_image import overlay_image
from clusterctl.transfer.registry_image import registry_image
from clusterctl.transport.credentials import Ask, nobody
from clusterctl.transport.local import LocalTransport

HOST = "host:"  # Prefix of --from values that name a host

# Directory for the layers that others lack, on a host that heads a chain, during the transfer.
SAVED = "/var/cache/clusterctl/saved"

# Bytes of uncompressed layers; fewer have arrived before they could be compressed.
WORTH_COMPRESSING = 32 * 1024**2

# Bytes per second of a link below which uncompressed layers are compressed: gzip level 1 takes in
# some 60 to 100 MB/s per core.
SLOW_LINK = 500_000_000 // 8

EngineStates = Mapping[str, EngineState]  # By host


@dataclass(frozen=True)
class ImageSupply:
    """An image that is ready to be sent."""

    content: ImageContent
    blobs: BlobSource  # For reading the blobs on this machine
    holder: str | None = None  # Host that heads the chain; None: this machine
    paths: Mapping[str, str] = field(default_factory=dict)  # By digest: files on the holder


class Origin(Protocol):
    """A place that an image can be sent from."""

    @property
    def name(self) -> str:
        """Name shown to users: gpu1, bundle.tar, its registry."""

    @property
    def wanted(self) -> WantedImage: ...

    @property
    def content(self) -> ImageContent | None:
        """None if it is known only after `supply` has read the image."""

    def supply(self, lacking: Collection[str], say: Say) -> ImageSupply:
        """Make the image ready to send. `lacking`: diff IDs of the layers that hosts lack."""

    def clear(self) -> None:
        """Remove temporary files of `supply`."""


# Returns an image as it is sent: uncompressed layers that hosts lack (by diff ID) are compressed
# where that pays. Raises RequirementsNotMet if this machine has no room.
AsSent = Callable[[LocalImage, Collection[str], Say], LocalImage]


def as_it_is(image: LocalImage, lacking: Collection[str], say: Say) -> LocalImage:
    del lacking, say
    return image


class LocalOrigin:
    """An image that this machine can read from a registry or an archive."""

    def __init__(
        self, name: str, image: LocalImage, reference: str, *, as_sent: AsSent = as_it_is
    ) -> None:
        self.name = name
        self._image, self._as_sent = image, as_sent
        self.content = image.content
        config = json.loads(b"".join(image.open(image.content.config)))
        self.wanted = WantedImage(
            tagged(reference),
            self.content.diff_ids,
            frozenset({self.content.config.digest, manifest_digest(self.content)}),
            settings(config.get("config")),
        )

    def supply(self, lacking: Collection[str], say: Say) -> ImageSupply:
        image = self._as_sent(self._image, lacking, say)
        return ImageSupply(image.content, image)

    def clear(self) -> None:
        """Do nothing: the blob store is a cache."""


class EngineOrigin:
    """An image of Docker on this machine, saved into the blob store when it is to be sent."""

    content = None

    def __init__(
        self,
        held: HeldImage,
        reference: str,
        save: Callable[[Say], LocalImage],
        *,
        as_sent: AsSent = as_it_is,
    ) -> None:
        self.name = "Docker on this machine"
        self.wanted = wanted_held(held, reference)
        self._save, self._as_sent = save, as_sent

    def supply(self, lacking: Collection[str], say: Say) -> ImageSupply:
        image = self._as_sent(self._save(say), lacking, say)
        return ImageSupply(image.content, image)

    def clear(self) -> None:
        """Do nothing: the blob store is a cache."""


class HostOrigin:
    """An image that a host has: that host heads the chain, and no byte of a layer passes through
    this machine."""

    content = None

    def __init__(
        self,
        driver: ContainerDriver,
        engine: EngineState,
        held: HeldImage,
        reference: str,
        directory: str = SAVED,
    ) -> None:
        self.name = driver.host
        self.wanted = wanted_held(held, reference)
        self._driver, self._engine, self._held = driver, engine, held
        self._directory = directory

    def supply(self, lacking: Collection[str], say: Say) -> ImageSupply:
        driver, reference, directory = self._driver, self.wanted.reference, self._directory
        found: HostImage | None = overlay_image(
            driver, self._engine, self._held, reference, directory, lacking, say
        )
        if found is None:
            image = driver.image(self._held.id)
            if image is None:
                raise StepFailed(
                    f"{reference} is gone from this host",
                    host=self.name,
                    hint="run the same command again",
                )
            found = save_on_host(driver, image, reference, directory, say=say, keep=lacking)
        return ImageSupply(found.content, HostBlobs(driver, found.paths), self.name, found.paths)

    def clear(self) -> None:
        self._driver.host_run(["rm", "-rf", self._directory])


def wanted_held(held: HeldImage, reference: str) -> WantedImage:
    """Return the image that hosts should have, from one that a host already has."""
    return WantedImage(tagged(reference), held.layers, frozenset({held.id}), held.settings)


@dataclass(frozen=True)
class ImageFinder:
    """Finds `reference`: at `chosen` (registry, docker, host:NAME, a path), else at the nearest
    origin. `order`: host names; where images differ between hosts, the first one's counts."""

    reference: str
    drivers: Mapping[str, ContainerDriver]
    order: tuple[str, ...]
    chosen: str | None = None
    archive: Path | None = None  # The inventory's archive of this image
    operator: ContainerDriver | None = None  # Docker on this machine
    platform: str = "linux/amd64"  # If the hosts' platform is unknown
    limit_rate: int | None = None  # Bytes per second that this machine may send
    compress: bool | None = None  # Uncompressed layers; None: if `limit_rate` < SLOW_LINK
    store: BlobStore = field(default_factory=BlobStore)
    ask: Ask = nobody
    say: Say = lambda _: None
    # Why this machine could not read the registry; it is asked only once in a run.
    _refused: list[str] = field(default_factory=list)

    def find(self, engines: EngineStates) -> Origin | Unknown:
        """Return the origin. Raises StepFailed, RequirementsNotMet, UsageError if there is none."""
        if self.chosen is None:
            return self._nearest(engines)
        if self.chosen == "registry":
            return self._from_registry(engines)
        if self.chosen == "docker":
            return self._from_docker() or self._missing("Docker on this machine", "docker pull")
        if self.chosen.startswith(HOST):
            return self._from_named_host(self.chosen.removeprefix(HOST), engines)
        return self._from_archive(Path(self.chosen).expanduser(), engines, self.reference)

    def _nearest(self, engines: EngineStates) -> Origin | Unknown:
        """Return the nearest origin. An archive in the inventory decides which image it is; a host
        that has the same image still comes first, as it is nearer to the others."""
        archived = self._from_archive(self.archive, engines, None) if self.archive else None
        layers = archived.wanted.layers if archived else None
        for name in self.order:
            engine = engines.get(name)
            held = engine.tagged(tagged(self.reference)) if engine else None
            if engine and held and engine.python and layers in (None, held.layers):
                return self._from_host(name, engine, held)
        return archived or self._from_docker() or self._from_registry_or_host(engines)

    def _from_host(self, name: str, engine: EngineState, held: HeldImage) -> Origin:
        return HostOrigin(self.drivers[name], engine, held, tagged(self.reference))

    def _from_named_host(self, name: str, engines: EngineStates) -> Origin:
        if name not in self.drivers:
            known = ", ".join(self.drivers)
            raise UsageError(f"--from host:{name}: no such host", hint=f"they are {known}")
        engine = engines.get(name) or inspect_engine(self.drivers[name])
        held = engine.tagged(tagged(self.reference))
        if held is None:
            self._missing(name, "docker images")
        return self._from_host(name, engine, held)

    def _missing(self, where: str, hint: str) -> NoReturn:
        raise StepFailed(f"{where} has no {self.reference}", hint=f"{hint} {self.reference}")

    def _from_archive(self, path: Path, engines: EngineStates, reference: str | None) -> Origin:
        image = archive_image(
            path, self.store, reference=reference, platform=_platform(engines), say=self.say
        )
        return LocalOrigin(path.name, image, self.reference, as_sent=self._as_sent)

    def _from_docker(self) -> Origin | None:
        """Return Docker's image on this machine; None without Docker, its daemon or the image."""
        driver = self.operator
        if driver is None:
            return None
        try:
            held = inspect_engine(driver).tagged(tagged(self.reference))
        except (EngineUnavailable, StepFailed):
            return None
        if held is None:
            return None

        def save(say: Say) -> LocalImage:
            image = driver.image(self.reference)
            if image is None:
                self._missing("Docker on this machine", "docker pull")
            return engine_image(driver, image, self.reference, self.store, say=say)

        return EngineOrigin(held, self.reference, save, as_sent=self._as_sent)

    def _from_registry(self, engines: EngineStates) -> Origin:
        platform = _platform(engines) or self.platform
        image = registry_image(self.reference, platform, self.store, say=self.say, ask=self.ask)

        def as_it_comes(_image: LocalImage, lacking: Collection[str], _say: Say) -> LocalImage:
            image.require_room(lacking)
            return image

        return LocalOrigin("its registry", image, self.reference, as_sent=as_it_comes)

    def _from_registry_or_host(self, engines: EngineStates) -> Origin | Unknown:
        """Return the registry; Unknown if it fails here, as a host may reach it or have a login."""
        if not self._refused:
            try:
                return self._from_registry(engines)
            except ClusterctlError as error:
                self._refused.append(f"{self.order[0]} pulls it first: from here, {error.summary}")
        return Unknown(self._refused[0])

    def _as_sent(self, image: LocalImage, lacking: Collection[str], say: Say) -> LocalImage:
        """Compress uncompressed layers if requested or if the rate limit implies a slow link."""
        plain = plain_size(image, lacking)
        if plain < WORTH_COMPRESSING or self.compress is False:
            return image
        if self.compress or (self.limit_rate is not None and self.limit_rate < SLOW_LINK):
            return compressed_image(image, self.store, say=say, lacking=lacking)
        self.say(
            f"sending {gib(plain)} of uncompressed layers; over a link of less than 500 Mbit/s "
            "this is faster: clusterctl image push --compress"
        )
        return image


def _platform(engines: EngineStates) -> str | None:
    """Return the platform of all hosts; None if they differ or it is unknown."""
    platforms = {engine.platform for engine in engines.values()}
    return platforms.pop() if len(platforms) == 1 else None


def operators_engine() -> ContainerDriver | None:
    """Return the driver of Docker here, running or not; None without a `docker` client."""
    if shutil.which("docker") is None:
        return None
    here = Host(name="operator", address="localhost")
    return driver_for(LocalTransport(here), sudo=False)


def archive_for(inventory: Inventory, reference: str) -> Path | None:
    """Return the inventory's archive if `reference` is the inventory's image."""
    return inventory.image_archive if reference == inventory.image else None
