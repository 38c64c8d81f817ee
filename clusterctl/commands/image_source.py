"""Where an image is taken from: a host that has it, an archive, Docker here, or its registry."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from clusterctl.containers.driver import ContainerDriver, EngineUnavailable, Say
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.reference import tagged
from clusterctl.engine.step import Unknown
from clusterctl.errors import ClusterctlError, StepFailed, UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.codec import FAST_LINK, choose_codec
from clusterctl.transfer.engine_image import engine_image
from clusterctl.transfer.engine_stock import EngineStock, HeldImage, take_stock
from clusterctl.transfer.image_origin import (
    Coded,
    EngineOrigin,
    HostOrigin,
    LocalOrigin,
    Origin,
)
from clusterctl.transfer.location import LocalImage
from clusterctl.transfer.recompressed import plain_size, recompressed
from clusterctl.transfer.registry_image import registry_image
from clusterctl.transfer.shipment import Stocks
from clusterctl.transfer.upload_rate import upload_rate
from clusterctl.transport.credentials import Ask, nobody
from clusterctl.transport.local import LocalTransport

HOST = "host:"

WORTH_PACKING = 32 * 1024**2
"""Bytes of plain layers; fewer are there as soon as they would be compressed."""


@dataclass(frozen=True)
class ImageSource:
    """Finds `reference`: where `chosen` says (registry, docker, host:NAME, a path), else at the
    nearest place. `order`: host names, whose image counts first where hosts differ."""

    reference: str
    drivers: Mapping[str, ContainerDriver]
    order: tuple[str, ...]
    chosen: str | None = None
    archive: Path | None = None
    """The inventory's, for this image."""
    operator: ContainerDriver | None = None
    """Docker on this machine."""
    platform: str = "linux/amd64"
    """What hosts are, where no engine could be asked."""
    limit_rate: int | None = None
    """Bytes a second that may leave this machine."""
    store: BlobStore = field(default_factory=BlobStore)
    ask: Ask = nobody
    say: Say = lambda _: None
    _refused: list[str] = field(default_factory=list)
    """Why the registry is not asked from here again in this run."""

    def find(self, stocks: Stocks) -> Origin | Unknown:
        """Raises StepFailed, RequirementsNotMet, UsageError when it is not there."""
        if self.chosen is None:
            return self._nearest(stocks)
        if self.chosen == "registry":
            return self._registry(stocks)
        if self.chosen == "docker":
            return self._operators(stocks) or self._missing("Docker on this machine", "docker pull")
        if self.chosen.startswith(HOST):
            return self._named_host(self.chosen.removeprefix(HOST), stocks)
        return self._archived(Path(self.chosen).expanduser(), stocks, self.reference)

    def _nearest(self, stocks: Stocks) -> Origin | Unknown:
        """The archive that the inventory names says which image it is; a host that has that one
        still comes before it, as it is nearer to the others."""
        archived = self._archived(self.archive, stocks, None) if self.archive else None
        held = self._holder(stocks, archived)
        found = held or archived or self._operators(stocks)
        return found or self._registry_or_host(stocks)

    def _holder(self, stocks: Stocks, archived: Origin | None) -> Origin | None:
        layers = archived.wanted.layers if archived else None
        for name in self.order:
            stock = stocks.get(name)
            held = stock.tagged(tagged(self.reference)) if stock else None
            if stock and held and stock.python and layers in (None, held.layers):
                return self._host_origin(name, stock, held)
        return None

    def _host_origin(self, name: str, stock: EngineStock, held: HeldImage) -> Origin:
        return HostOrigin(self.drivers[name], stock, held, tagged(self.reference))

    def _named_host(self, name: str, stocks: Stocks) -> Origin:
        if name not in self.drivers:
            known = ", ".join(self.drivers)
            raise UsageError(f"--from host:{name}: no such host", hint=f"they are {known}")
        stock = stocks.get(name) or take_stock(self.drivers[name])
        held = stock.tagged(tagged(self.reference))
        if held is None:
            self._missing(name, "docker images")
        return self._host_origin(name, stock, held)

    def _missing(self, where: str, hint: str) -> NoReturn:
        raise StepFailed(f"{where} has no {self.reference}", hint=f"{hint} {self.reference}")

    def _archived(self, path: Path, stocks: Stocks, reference: str | None) -> Origin:
        platform = _platform(stocks.values())
        image = archive_image(
            path, self.store, reference=reference, platform=platform, say=self.say
        )
        return LocalOrigin(path.name, image, self.reference, coded=self._coding(stocks))

    def _operators(self, stocks: Stocks) -> Origin | None:
        """A machine without Docker, or without its daemon, has no image to give."""
        driver = self.operator
        if driver is None:
            return None
        try:
            held = take_stock(driver).tagged(tagged(self.reference))
        except (EngineUnavailable, StepFailed):
            return None
        if held is None:
            return None
        save = partial(self._saved, driver)
        return EngineOrigin(held, self.reference, save, coded=self._coding(stocks))

    def _saved(self, driver: ContainerDriver, say: Say) -> LocalImage:
        image = driver.image(self.reference)
        if image is None:
            self._missing("Docker on this machine", "docker pull")
        return engine_image(driver, image, self.reference, self.store, say=say)

    def _registry(self, stocks: Stocks) -> Origin:
        platform = _platform(stocks.values()) or self.platform
        image = registry_image(self.reference, platform, self.store, say=self.say, ask=self.ask)

        def as_it_comes(_image: LocalImage, lacking: Collection[str], _say: Say) -> LocalImage:
            image.require_room(lacking)
            return image

        return LocalOrigin("its registry", image, self.reference, coded=as_it_comes)

    def _coding(self, stocks: Stocks) -> Coded:
        """Measures the way to the first host once it is known that something will be sent."""
        versions = [stock.version for stock in stocks.values()]

        def coded(image: LocalImage, lacking: Collection[str], say: Say) -> LocalImage:
            if plain_size(image, lacking) < WORTH_PACKING:
                return image
            codec = choose_codec(
                self._link(), versions, zstd_at_hand=shutil.which("zstd") is not None
            )
            return recompressed(image, codec, self.store, say=say, lacking=lacking)

        return coded

    def _link(self) -> float | None:
        """Mbit/s from here to the first host."""
        if self.limit_rate is not None and self.limit_rate * 8 / 1e6 < FAST_LINK:
            return self.limit_rate * 8 / 1e6
        return upload_rate(self.drivers[self.order[0]])

    def _registry_or_host(self, stocks: Stocks) -> Origin | Unknown:
        """A host may reach a registry that this machine does not, or have a login there."""
        if not self._refused:
            try:
                return self._registry(stocks)
            except ClusterctlError as error:
                self._refused.append(f"{self.order[0]} pulls it first: from here, {error.summary}")
        return Unknown(self._refused[0])


def _platform(stocks: Collection[EngineStock]) -> str | None:
    """That of all hosts; None where they differ or nobody knows."""
    platforms = {stock.platform for stock in stocks}
    return platforms.pop() if len(platforms) == 1 else None


def operators_engine() -> ContainerDriver | None:
    """Docker on this machine, where there is a client; without a daemon it has no image."""
    if shutil.which("docker") is None:
        return None
    here = Host(name="operator", address="localhost")
    return driver_for(LocalTransport(here), sudo=False)


def archive_for(inventory: Inventory, reference: str) -> Path | None:
    """The inventory's archive, when `reference` is the inventory's image."""
    return inventory.image_archive if reference == inventory.image else None
