"""`image bundle`: write images from any source into one file, for sites without a registry."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from clusterctl.containers.driver import ContainerDriver, Image, Say
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, StepFailed, UsageError, raise_all
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.values import IMAGE, PATTERN_MEANS
from clusterctl.steps.node_image import made_from, make_node_image, node_tag
from clusterctl.survey.survey import connected
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.bundle import write_bundle
from clusterctl.transfer.content import ImageContent, ImageSource, fits, wrong_platform
from clusterctl.transfer.engine_image import engine_image, save_on_host
from clusterctl.transfer.image_sources import HOST, SAVED, operators_engine
from clusterctl.transfer.registry_image import registry_image
from clusterctl.transport.credentials import Credentials

PLATFORM = r"^[a-z0-9]+/[a-z0-9]+(/[a-z0-9.]+)?$"
USUAL_PLATFORM = "linux/amd64"


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
    if bundle.pip_index and not bundle.with_ray:
        invalid.append(UsageError("--pip-index is the source of Ray", hint="add --with-ray"))
    raise_all(invalid)
    with ExitStack() as stack:
        find = _opener(bundle, credentials, store or BlobStore(), say, inventory, stack)
        images: list[ImageSource] = []
        errors: list[ClusterctlError] = []
        for reference in bundle.references:
            try:
                images.append(find(reference))
            except ClusterctlError as error:
                errors.append(error)
        raise_all(errors)
        for image in images:
            found = image.content
            if bundle.platform and found.platform and not fits(found.platform, bundle.platform):
                raise wrong_platform(found.reference, bundle.platform, (found.platform,))
        size = write_bundle(images, bundle.path, say=say)
    return BundledImages(bundle.path, size, tuple(image.content for image in images))


def _opener(
    bundle: ImageBundle,
    credentials: Credentials,
    store: BlobStore,
    say: Say,
    inventory: Callable[[], Inventory],
    stack: ExitStack,
) -> Callable[[str], ImageSource]:
    """Return the function that finds the image of a reference."""

    def from_registry(reference: str) -> ImageSource:
        platform = bundle.platform or USUAL_PLATFORM
        image = registry_image(reference, platform, store, say=say, ask=credentials.ask)
        image.download(lambda text: say(f"downloading {reference}: {text}"))
        return image

    def held(driver: ContainerDriver, reference: str) -> tuple[Image, str]:
        """Return the image to write, and its name."""
        image = driver.image(reference)
        if image is None and bundle.with_ray and bundle.chosen == "registry":
            driver.pull(reference, say)
            image = driver.image(reference)
        if image is None:
            raise StepFailed(
                f"Docker has no image {reference}", host=driver.host, hint="docker images"
            )
        if not bundle.with_ray:
            return image, reference
        if made_from(driver, reference) is None:
            make_node_image(driver, reference, pip_index=bundle.pip_index, say=say)
        made = made_from(driver, reference)
        if made is None:
            raise StepFailed(f"the node image built from {reference} is gone", host=driver.host)
        return made, node_tag(made)

    if bundle.chosen == "registry" and not bundle.with_ray:
        return from_registry
    if bundle.chosen in ("registry", "docker"):
        here = operators_engine()
        if here is None:
            raise StepFailed(
                "this machine has no Docker"
                + (", which adds Ray to images" if bundle.with_ray else ""),
                hint="use --from host:NAME, a host that has the image"
                if bundle.with_ray
                else "use --from registry",
            )
        return lambda reference: engine_image(here, *held(here, reference), store, say=say)
    if bundle.chosen.startswith(HOST):
        name = bundle.chosen.removeprefix(HOST)
        known = {host.name: host for host in inventory().hosts}
        if name not in known:
            hint = f"they are {', '.join(known)}"
            raise UsageError(f"--from host:{name}: no such host", hint=hint)
        transports = stack.enter_context(connected((known[name],), credentials))
        there = driver_for(transports[name])
        stack.callback(there.host_run, ["rm", "-rf", SAVED])
        return lambda reference: save_on_host(there, *held(there, reference), SAVED, say=say)
    if bundle.with_ray:
        raise UsageError(
            "--with-ray runs the image, which an archive cannot",
            hint="docker load it, and use --from docker",
        )
    path = Path(bundle.chosen).expanduser()
    return lambda reference: archive_image(
        path, store, reference=reference, platform=bundle.platform, say=say
    )
