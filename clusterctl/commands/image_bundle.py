"""`image bundle`: images from wherever they are into one file, for sites without a registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterctl.commands.reach import reach
from clusterctl.containers.driver import ContainerDriver, Image, Say
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, StepFailed, UsageError, raise_all
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.values import IMAGE, PATTERN_MEANS
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.bundle import write_bundle
from clusterctl.transfer.content import Blob, ImageContent, ImageSource
from clusterctl.transfer.engine_image import engine_image, save_on_host
from clusterctl.transfer.image_load import HostBlobs
from clusterctl.transfer.image_sources import HOST, SAVED, operators_engine
from clusterctl.transfer.manifests import fits, wrong_platform
from clusterctl.transfer.registry_image import registry_image
from clusterctl.transport.credentials import Credentials

PLATFORM = r"^[a-z0-9]+/[a-z0-9]+(/[a-z0-9.]+)?$"
USUAL_PLATFORM = "linux/amd64"


@dataclass(frozen=True)
class Bundled:
    """A file that holds images."""

    path: Path
    size: int
    """Bytes."""
    images: tuple[ImageContent, ...]


@dataclass(frozen=True)
class Bundle:
    """What is wanted."""

    references: tuple[str, ...]
    path: Path
    chosen: str = "registry"
    """--from: registry, docker, host:NAME, or the path of an archive."""
    platform: str | None = None
    """None: linux/amd64 from a registry, what there is from elsewhere."""


def run(
    bundle: Bundle,
    credentials: Credentials,
    *,
    say: Say,
    inventory: Callable[[], Inventory],
    store: BlobStore | None = None,
) -> Bundled:
    """Find every image, then write the file. Raises the errors of all images together.

    `inventory` is asked for only where a host has the images.
    """
    _insist_on_sense(bundle)
    store = store or BlobStore()
    with ExitStack() as stack:
        opener = _opener(bundle, credentials, store, say, inventory, stack)
        images = _all(bundle.references, opener)
        for image in images:
            _insist_platform(image.content, bundle.platform)
        size = write_bundle(images, bundle.path, say=say)
    return Bundled(bundle.path, size, tuple(image.content for image in images))


Opener = Callable[[str], ImageSource]


def _opener(
    bundle: Bundle,
    credentials: Credentials,
    store: BlobStore,
    say: Say,
    inventory: Callable[[], Inventory],
    stack: ExitStack,
) -> Opener:
    """Gives the image of a reference."""
    if bundle.chosen == "registry":
        return lambda reference: _from_registry(reference, bundle.platform, credentials, store, say)
    if bundle.chosen == "docker":
        driver = _operators()
        return lambda reference: engine_image(
            driver, _held(driver, reference), reference, store, say=say
        )
    if bundle.chosen.startswith(HOST):
        name = bundle.chosen.removeprefix(HOST)
        driver = stack.enter_context(_host(name, inventory(), credentials))
        return lambda reference: _HostSource(driver, _held(driver, reference), reference, say)
    path = Path(bundle.chosen).expanduser()
    return lambda reference: archive_image(
        path, store, reference=reference, platform=bundle.platform, say=say
    )


def _from_registry(
    reference: str, platform: str | None, credentials: Credentials, store: BlobStore, say: Say
) -> ImageSource:
    image = registry_image(
        reference, platform or USUAL_PLATFORM, store, say=say, ask=credentials.ask
    )
    image.fetch_ahead()
    return image


def _all(references: Sequence[str], opener: Opener) -> list[ImageSource]:
    images, errors = [], []
    for reference in references:
        try:
            images.append(opener(reference))
        except ClusterctlError as error:
            errors.append(error)
    raise_all(errors)
    return images


def _insist_on_sense(bundle: Bundle) -> None:
    """Raises UsageError for every name that is none."""
    errors = [
        UsageError(f"{name!r} is no image name: it {PATTERN_MEANS[IMAGE]}")
        for name in bundle.references
        if not re.match(IMAGE, name)
    ]
    if bundle.platform and not re.match(PLATFORM, bundle.platform):
        hint = "--platform linux/amd64, or linux/arm64"
        errors.append(UsageError(f"{bundle.platform!r} is no platform", hint=hint))
    raise_all(errors)


def _insist_platform(content: ImageContent, platform: str | None) -> None:
    if platform and content.platform and not fits(content.platform, platform):
        raise wrong_platform(content.reference, platform, (content.platform,))


def _operators() -> ContainerDriver:
    driver = operators_engine()
    if driver is None:
        raise StepFailed("this machine has no Docker", hint="take it from: --from registry")
    return driver


def _held(driver: ContainerDriver, reference: str) -> Image:
    image = driver.image(reference)
    if image is None:
        raise StepFailed(f"Docker has no image {reference}", host=driver.host, hint="docker images")
    return image


@contextmanager
def _host(name: str, inventory: Inventory, credentials: Credentials) -> Iterator[ContainerDriver]:
    known = {host.name: host for host in inventory.hosts}
    if name not in known:
        raise UsageError(f"--from host:{name}: no such host", hint=f"they are {', '.join(known)}")
    with reach((known[name],), credentials) as transports:
        driver = driver_for(transports[name])
        try:
            yield driver
        finally:
            driver.host_run(["rm", "-rf", SAVED])


class _HostSource:
    """An image of a host, read over SSH."""

    def __init__(self, driver: ContainerDriver, image: Image, reference: str, say: Say) -> None:
        saved = save_on_host(driver, image, reference, SAVED, say=say)
        self.content = saved.content
        self._blobs = HostBlobs(driver, saved.paths)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        return self._blobs.open(blob, offset)
