"""The inventory's image on the head, from the nearest place that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from clusterctl.containers.archive import Archive, open_archive
from clusterctl.containers.driver import ContainerDriver, EngineUnavailable, Image
from clusterctl.containers.image_copy import copy, insist_on_room, settle
from clusterctl.containers.image_stream import load
from clusterctl.containers.meter import Meter
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import ConnectionFailed, RequirementsNotMet, StepFailed
from clusterctl.steps.engines import Engines
from clusterctl.steps.image_marks import mark

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's word for a processor to that of image configurations."""


class ImagePresent:
    """The head has the image by its reference, and with the archive's layers if one is given.

    Tried in order: the other hosts, the archive, the operator's own engine, the registry.
    """

    title = "image"

    def __init__(
        self,
        reference: str,
        engines: Engines,
        *,
        others: Sequence[HostView] = (),
        node_ip: Callable[[HostView], str],
        archive: Path | None = None,
        operator: ContainerDriver | None = None,
    ) -> None:
        self._reference = reference
        self._engines = engines
        self._others = tuple(others)
        self._node_ip = node_ip
        self._archive_path = archive
        self._operator = operator

    def check(self, view: HostView) -> Change | None:
        archive = self._archive()
        here = self._engines(view).image(self._reference)
        if here is None:
            return Change(f"get {self._reference}")
        if not _same(here, archive):
            return Change(f"replace {self._reference} by what {self._archive_path} holds")
        return None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        driver, archive = self._engines(view), self._archive()
        if driver.image(self._reference) is None:
            mark(view, self._reference)
        found = next(self._elsewhere(view, archive), None)
        if found:
            source, image, address = found
            _insist_on_architecture(view, image)
            view.say(f"from {source.host}")
            copy(source, driver, image, self._reference, address, view.say)
        elif archive:
            self._load(view, driver, archive)
        else:
            self._pull(view, driver)

    def _archive(self) -> Archive | None:
        return open_archive(self._archive_path) if self._archive_path else None

    def _elsewhere(
        self, view: HostView, archive: Archive | None
    ) -> Iterator[tuple[ContainerDriver, Image, str | None]]:
        """Engines that have the right image, the image, and the address to fetch it from."""
        for other in self._others:
            if other.host.name != view.host.name:
                image = _image(self._engines(other), self._reference)
                if image and _same(image, archive):
                    yield self._engines(other), image, self._node_ip(other)
        if self._operator and archive is None:
            image = _image(self._operator, self._reference)
            if image:
                yield self._operator, image, None

    def _load(self, view: HostView, driver: ContainerDriver, archive: Archive) -> None:
        insist_on_room(driver, archive.unpacked)
        view.say(f"from {archive.path}")
        name = load(driver, archive.chunks(), archive.unpacked, Meter(view.say, archive.size))
        settle(driver, name, self._reference, archive.layers)

    def _pull(self, view: HostView, driver: ContainerDriver) -> None:
        view.say(f"no host has {self._reference}: pulling it from its registry")
        try:
            driver.pull(self._reference, view.say)
        except StepFailed as error:
            error.summary = f"{self._reference} is on no host, and {error.summary}"
            raise


def _same(image: Image, archive: Archive | None) -> bool:
    return archive is None or archive.layers is None or image.layers == archive.layers


def _image(driver: ContainerDriver, reference: str) -> Image | None:
    """A host that cannot be asked has no image to give."""
    try:
        return driver.image(reference)
    except (EngineUnavailable, ConnectionFailed):
        return None


def _insist_on_architecture(view: HostView, image: Image) -> None:
    machine = view.facts.os.architecture
    wanted = ARCHITECTURES.get(machine, machine)
    if image.architecture and image.architecture != wanted:
        raise RequirementsNotMet(
            f"the image is made for {image.architecture}, and the host is {wanted}",
            host=view.host.name,
            hint="name an image for this processor in the inventory",
        )
