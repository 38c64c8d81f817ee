"""Images on their way to hosts in memory."""

from __future__ import annotations

from clusterctl.engine.step import HostView
from clusterctl.steps.files import IMAGES, record_installed
from clusterctl.transfer.content import digest_of
from clusterctl.transfer.image_receiver import Find, ImageReceiver
from clusterctl.transfer.image_sources import local_origin
from clusterctl.transfer.transfer import Route, Transfer
from tests.fakes.chain import FakeChains
from tests.fakes.host import FakeHost, fake_driver
from tests.fakes.loaded_image import image_of
from tests.fakes.made_image import MadeImage, layer, made_image

REFERENCE = "vllm/vllm-openai:v0.33.0"
BASE = layer("base", b"b" * 2_000_000)
IMAGE = made_image(BASE, layer("top", b"one"))
NEWER = made_image(BASE, layer("top", b"two"), word="two")


def give_image(host: FakeHost, image: MadeImage, *tags: str) -> None:
    """The host has it already."""
    identifier = image.content.config.digest
    host.engine.images[identifier] = image_of(image.config, identifier, *tags)


def from_archive(image: MadeImage, reference: str = REFERENCE) -> Find:
    return lambda _: local_origin("bundle.tar", image, reference)


def from_registry(image: MadeImage) -> Find:
    """Of a registry that has the image's own manifest under the tag."""
    digest = digest_of(image.content.manifest)
    return lambda _: local_origin("its registry", image, REFERENCE, digest=digest)


def ship(
    find: Find, views: dict[str, HostView], chains: FakeChains, **speeds: int | None
) -> Transfer:
    """To all of `views`; bootstrap's way, which marks what it brings. Mbit/s by host."""
    route = Route(
        {name: view.transport for name, view in views.items()},
        lambda name: f"{name}.example",
        speed=speeds.get,
        chain=chains,  # type: ignore[arg-type]
    )
    drivers = {name: fake_driver(view.transport) for name, view in views.items()}
    images = ImageReceiver(
        find,
        drivers,
        tuple(views),
        route,
        before=lambda view: record_installed(view, [REFERENCE], IMAGES),
    )
    return Transfer(images, route)
