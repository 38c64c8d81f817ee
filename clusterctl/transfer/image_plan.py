"""Choose how an image reaches one host, from what the host has. Pure functions.

dockerd fetches only layers that it lacks. But with overlay2 it recognizes a layer only if it pulled
it: after `docker load` it would fetch the layer again (moby #46664). Then a partial `docker load`,
of the missing layers alone, moves fewer bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from clusterctl.containers.meter import gib
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.content import PLAIN_LAYERS, Blob, ImageContent, fits
from clusterctl.transfer.engine_state import EngineState, HeldImage

# Unpacked bytes per byte of a compressed layer. CUDA images have 2.4 (vllm #22377: 28.6 GB from
# 12); text and Python more.
EXPANSION = 3.0

SLACK = 256 * 1024**2  # Bytes that the engine needs for itself

SMALL = 1024**2  # Bytes; a smaller saving does not justify `docker load` in place of a pull

# First Docker whose containerd store loads an archive that lacks layers (moby
# daemon/containerd/image_exporter.go: WithSkipMissing).
PARTIAL_SINCE = 25


ZSTD_SINCE = 23  # First Docker whose overlay2 unpacks zstd layers (moby, pkg/archive)


# Bytes of uncompressed layers; fewer take longer to compress than to send.
WORTH_COMPRESSING = 32 * 1024**2


@dataclass(frozen=True)
class WantedImage:
    """The image that hosts should have."""

    reference: str  # Its name on the hosts, with the tag
    layers: tuple[str, ...]  # diff IDs
    ids: frozenset[str]  # Known digests of its config and manifest
    settings: str  # From `engine_state.settings`


class Method(StrEnum):
    """How an image is delivered to a host."""

    PULL = "docker pull"  # From the relay on the host
    LOAD = "docker load"  # Of the missing layers, which the relay on the host fetches


@dataclass(frozen=True)
class ImageDelivery:
    """Layers to deliver to a host, and the method."""

    method: Method
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        """Bytes to deliver."""
        return sum(layer.size for layer in self.layers)


def is_wanted(image: HeldImage, wanted: WantedImage) -> bool:
    """Return whether containers of `image` would equal those of the wanted image: same layers,
    and same ID or settings. IDs of the same image differ between image stores."""
    same_settings = image.id in wanted.ids or image.settings == wanted.settings
    return image.layers == wanted.layers and same_settings


def same_image(stock: EngineState, wanted: WantedImage) -> HeldImage | None:
    """Return the engine's image that is the wanted one, under any name; None if it is missing."""
    found = [image for image in stock.images if is_wanted(image, wanted)]
    named = [image for image in found if wanted.reference in image.tags]
    return next(iter(named or found), None)


def choose_delivery(stock: EngineState, content: ImageContent) -> ImageDelivery:
    """Return the delivery that moves the fewest bytes, for a host without the image."""
    lacking = content.layers[stock.common(content.diff_ids) :]
    takes_partial = not stock.containerd or _major(stock.version) >= PARTIAL_SINCE
    if stock.rootless:
        return ImageDelivery(Method.LOAD, lacking if takes_partial else content.layers)
    pulled = content.layers[_recognized(stock, content) :]
    surplus = sum(blob.size for blob in pulled) - sum(blob.size for blob in lacking)
    if surplus > SMALL and takes_partial:
        return ImageDelivery(Method.LOAD, lacking)
    return ImageDelivery(Method.PULL, pulled)


def uncompressed(content: ImageContent, lacking: Collection[str]) -> tuple[Blob, ...]:
    """Return the layers with the diff IDs `lacking` that are worth compressing on their way."""
    layers = zip(content.layers, content.diff_ids, strict=True)
    plain = [
        layer for layer, diff_id in layers
        if diff_id in lacking and layer.media_type in PLAIN_LAYERS
    ]  # fmt: skip
    return tuple(plain) if sum(layer.size for layer in plain) >= WORTH_COMPRESSING else ()


def problems(host: str, stock: EngineState, content: ImageContent) -> Iterator[RequirementsNotMet]:
    """Yield an error for each reason why the host cannot take the image."""
    if content.platform and not fits(content.platform, stock.platform):
        yield RequirementsNotMet(
            f"{content.reference} is made for {content.platform}, and the host is {stock.platform}",
            host=host,
            hint=f"name an image for {stock.platform}, or leave the host out: --limit '!{host}'",
        )
    zstd = any("zstd" in layer.media_type for layer in content.layers)
    if zstd and not stock.containerd and _major(stock.version) < ZSTD_SINCE:
        yield RequirementsNotMet(
            f"{content.reference} has zstd layers, which Docker {stock.version} cannot unpack",
            host=host,
            hint=f"update Docker there to {ZSTD_SINCE} or later, or push it from a docker archive",
        )
    delivery = choose_delivery(stock, content)
    shared = delivery.size if stock.one_disk else 0
    needed = delivery.size + sum(map(unpacked, delivery.layers)) + shared + SLACK
    if delivery.layers and stock.free < needed:
        yield RequirementsNotMet(
            f"the image needs {gib(needed)} at {stock.root} while it is loaded, packed "
            f"and unpacked, but {gib(stock.free)} are free",
            host=host,
            hint="make room there: "
            f"clusterctl exec --limit {host} -- docker system df; docker image prune",
        )
    if not stock.one_disk and stock.cache_free < delivery.size:
        yield RequirementsNotMet(
            f"{gib(delivery.size)} of layers pass through /var/lib/clusterctl, but "
            f"{gib(stock.cache_free)} are free",
            host=host,
            hint="make room there: df -h /var/lib",
        )


def unpacked(layer: Blob) -> int:
    """Return the approximate size in bytes of the unpacked layer."""
    packed = "gzip" in layer.media_type or "zstd" in layer.media_type
    return round(layer.size * EXPANSION) if packed else layer.size


def _recognized(stock: EngineState, content: ImageContent) -> int:
    """Return how many layers a pull does not fetch: those before the first whose compressed digest
    is unknown, or whose chain is missing (moby distribution/xfer/download.go)."""
    common = stock.common(content.diff_ids)
    if stock.containerd:  # containerd looks up unpacked snapshots by chain ID
        return common
    known = [layer.digest in stock.digests for layer in content.layers[:common]]
    return known.index(False) if False in known else common


def _major(version: str) -> int:
    """Return the major version of an engine (20 of 20.10.24+dfsg1); 0 if it cannot be parsed: such
    an engine gets what every version supports."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0
