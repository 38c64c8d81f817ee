"""An image from one engine to another: room looked at first, content proved afterwards."""

from __future__ import annotations

from clusterctl.containers import direct_transfer, image_stream
from clusterctl.containers.direct_transfer import NoDirectConnection
from clusterctl.containers.driver import ContainerDriver, Image, Say
from clusterctl.containers.meter import GIB, Meter
from clusterctl.containers.reference import tagged
from clusterctl.errors import RequirementsNotMet, StepFailed

ROOM = 2.1
"""Free bytes that `docker load` needs per byte of image: the tar that it spools, or the blobs
that containerd keeps, and the unpacked layers beside them."""


def copy(
    source: ContainerDriver,
    receiver: ContainerDriver,
    image: Image,
    reference: str,
    address: str | None,
    say: Say,
) -> None:
    """Make `image` of `source` be `reference` on `receiver`.

    Straight from `address` of the source's host, or through this machine where that cannot be
    (or address is None). Raises RequirementsNotMet when the disk is too small, StepFailed.
    """
    insist_on_room(receiver, image.size)
    if address is None:
        name = _through_here(source, receiver, image, say)
    else:
        try:
            meter = Meter(say, image.size)
            name = direct_transfer.transfer(source, receiver, image, address, meter)
        except NoDirectConnection as problem:
            say(f"{problem.summary}: sending through this machine instead")
            name = _through_here(source, receiver, image, say)
    settle(receiver, name, reference, image.layers)


def _through_here(
    source: ContainerDriver, receiver: ContainerDriver, image: Image, say: Say
) -> str:
    chunks = image_stream.saved(source, image)
    return image_stream.load(receiver, chunks, image.size, Meter(say, image.size))


def insist_on_room(driver: ContainerDriver, size: int) -> None:
    """Raise RequirementsNotMet unless an image of `size` bytes can be loaded."""
    free, needed = driver.free_space(), int(size * ROOM)
    if free < needed:
        raise RequirementsNotMet(
            f"the image of {size / GIB:.1f} GiB needs {needed / GIB:.1f} GiB while it is loaded, "
            f"and Docker's disk has {free / GIB:.1f} GiB free",
            host=driver.host,
            hint="make room: docker system df; docker image prune",
        )


def settle(
    driver: ContainerDriver, name: str, reference: str, layers: tuple[str, ...] | None
) -> None:
    """Name what was loaded as `name` by `reference`, once its layers are the expected ones."""
    found = driver.image(name)
    if found is None:
        raise StepFailed(f"docker load named {name}, and it is not there", host=driver.host)
    if layers is not None and found.layers != layers:
        raise StepFailed(
            f"{name} arrived with other layers than it was sent with",
            host=driver.host,
            hint="two images have this name: remove it on both hosts, and run clusterctl again",
        )
    if tagged(reference) not in found.tags:
        driver.tag(found.id, tagged(reference))
