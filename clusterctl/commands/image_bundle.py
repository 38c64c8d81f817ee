"""`image bundle`: write images from any source into one file, for sites without a registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, StepFailed, UsageError, raise_all
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.values import IMAGE, PATTERN_MEANS
from clusterctl.steps.node_image import made_from, make_node_image, node_tag
from clusterctl.survey.survey import connected
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.bundle import write_bundle
from clusterctl.transfer.content import ImageContent, ImageSource, fits, wrong_platform
from clusterctl.transfer.image_sources import HOST, ImageFinder, operators_engine
from clusterctl.transfer.registry_image import RegistryImage
from clusterctl.transport.credentials import Credentials

PLATFORM = r"^[a-z0-9]+/[a-z0-9]+(/[a-z0-9.]+)?$"

# Of a host, for the layers of images in a bundle. An `image push` may use its own directory
# meanwhile: this command takes no lock.
BUNDLED = "/var/lib/clusterctl/bundled"


@dataclass(frozen=True)
class BundledImages:
    """The file that was written, and the images in it."""

    path: Path
    size: int  # Bytes
    images: tuple[ImageContent, ...]


@dataclass(frozen=True)
class ImageBundle:
    """Arguments of `image bundle`."""

    references: tuple[str, ...]
    path: Path
    chosen: str = "registry"  # --from: registry, docker, host:NAME, or the path of an archive
    # None: linux/amd64 from a registry, any available platform from other sources.
    platform: str | None = None
    with_ray: bool = False  # Write node images, made where `chosen` says, instead of `references`
    pip_index: str | None = None  # Where Ray comes from; None: PyPI

    @property
    def archive(self) -> bool:
        """Whether the images come from a file."""
        return self.chosen not in ("registry", "docker") and not self.chosen.startswith(HOST)


def run(
    bundle: ImageBundle,
    credentials: Credentials,
    *,
    say: Say,
    inventory: Callable[[], Inventory],
    store: BlobStore | None = None,
) -> BundledImages:
    """Find every image, then write the file. Raises the errors of all images together, and before
    that UsageError for invalid names and an invalid platform.

    `inventory` is called only if `chosen` names a host.
    """
    invalid = [
        UsageError(f"{name!r} is not a valid image name: it {PATTERN_MEANS[IMAGE]}")
        for name in bundle.references
        if not re.match(IMAGE, name)
    ]
    if bundle.platform and not re.match(PLATFORM, bundle.platform):
        hint = "--platform linux/amd64, or linux/arm64"
        invalid.append(UsageError(f"{bundle.platform!r} is not a valid platform", hint=hint))
    if bundle.with_ray and bundle.archive:
        invalid.append(
            UsageError(
                "--with-ray runs the image, which an archive cannot",
                hint=f"docker load -i {bundle.chosen}; then --from docker",
            )
        )
    if bundle.pip_index and not bundle.with_ray:
        invalid.append(UsageError("--pip-index is the source of Ray", hint="add --with-ray"))
    raise_all(invalid)
    with _host(bundle, credentials, inventory) as drivers:
        finder = ImageFinder(
            bundle.references[0],
            drivers,
            order=(),
            operator=operators_engine(),
            platform=bundle.platform,
            store=store or BlobStore(),
            ask=credentials.ask,
            say=say,
            saved=BUNDLED,
        )
        images: list[ImageSource] = []
        errors: list[ClusterctlError] = []
        for reference in bundle.references:
            try:
                images.append(_found(bundle, replace(finder, reference=reference)))
            except ClusterctlError as error:
                errors.append(error)
        raise_all(errors)
        for image in images:
            found = image.content
            if bundle.platform and found.platform and not fits(found.platform, bundle.platform):
                raise wrong_platform(found.reference, bundle.platform, (found.platform,))
        size = write_bundle(images, bundle.path, say=say)
    return BundledImages(bundle.path, size, tuple(image.content for image in images))


@contextmanager
def _host(
    bundle: ImageBundle, credentials: Credentials, inventory: Callable[[], Inventory]
) -> Iterator[dict[str, ContainerDriver]]:
    """Connect to the host of `--from host:NAME`, if given; yield its engine by its name."""
    if not bundle.chosen.startswith(HOST):
        yield {}
        return
    name = bundle.chosen.removeprefix(HOST)
    known = {host.name: host for host in inventory().hosts}
    if name not in known:
        hint = f"they are {', '.join(known)}"
        raise UsageError(f"--from host:{name}: no such host", hint=hint)
    with connected((known[name],), credentials) as transports:
        driver = driver_for(transports[name])
        try:
            yield {name: driver}
        finally:
            driver.host_run(["rm", "-rf", BUNDLED])


def _found(bundle: ImageBundle, finder: ImageFinder) -> ImageSource:
    """Return the image, with all of its layers at hand."""
    place = bundle.chosen
    if bundle.with_ray:
        made = _node_image(bundle, finder)
        finder = replace(finder, reference=made)
        place = "docker" if place == "registry" else place
    origin = finder.place(place, {})
    image = origin.supply(origin.wanted.layers, finder.say)
    if isinstance(image, RegistryImage):
        image.download(lambda text: finder.say(f"downloading {finder.reference}: {text}"))
    return image


def _node_image(bundle: ImageBundle, finder: ImageFinder) -> str:
    """Make the node image of an image with the engine that has it; return its tag. Docker on this
    machine pulls it first with `--from registry`."""
    driver = next(iter(finder.drivers.values()), finder.operator)
    if driver is None:
        raise StepFailed(
            "this machine has no Docker, which adds Ray to images",
            hint="use --from host:NAME, a host that has the image",
        )
    reference = finder.reference
    if bundle.chosen == "registry" and driver.image(reference) is None:
        driver.pull(reference, finder.say)
    if driver.image(reference) is None:
        there = f"clusterctl exec --limit {driver.host} -- " if finder.drivers else ""
        hint = f"{there}docker images"
        raise StepFailed(f"Docker has no image {reference}", host=driver.host, hint=hint)
    if made_from(driver, reference) is None:
        make_node_image(driver, reference, pip_index=bundle.pip_index, say=finder.say)
    made = made_from(driver, reference)
    if made is None:
        raise StepFailed(f"the node image built from {reference} is gone", host=driver.host)
    return node_tag(made)
