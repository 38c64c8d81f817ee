"""State of a host's engine, queried in one round trip (images, layers, disk space), and how to
deliver an image to it.

dockerd fetches only layers that it lacks. But with overlay2 it recognizes a layer only if it pulled
it: after `docker load` it would fetch the layer again (moby #46664). Then a partial `docker load`,
of the missing layers alone, moves fewer bytes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.failures import engine_error
from clusterctl.containers.meter import gib
from clusterctl.errors import MALFORMED, RequirementsNotMet
from clusterctl.transfer.chain_link import CACHE
from clusterctl.transfer.content import PLAIN_LAYERS, Blob, ImageContent, fits

# In DriverStatus of `docker info` when Docker uses containerd's image store.
CONTAINERD = "io.containerd.snapshotter.v1"

# Processors as the kernel names them, to their names in image configs.
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}

# Keys of `config` in an image config that containers inherit.
INHERITED = (
    "Entrypoint", "Cmd", "Env", "WorkingDir", "User", "Labels",
    "ExposedPorts", "Volumes", "StopSignal",
)  # fmt: skip


@dataclass(frozen=True)
class HeldImage:
    """An image that an engine has."""

    id: str  # Digest of the config; with containerd's image store, of the manifest
    tags: tuple[str, ...]
    layers: tuple[str, ...]  # diff IDs, the base first
    size: int  # Bytes, unpacked
    settings: str  # What containers inherit, from `settings`: the same text with both image stores


@dataclass(frozen=True)
class EngineState:
    """State of one host's engine, from `inspect_engine`."""

    version: str
    containerd: bool  # Uses containerd's image store, not overlay2 (or another graph driver)
    rootless: bool  # Its 127.0.0.1 is not the host's: it cannot reach the relay
    platform: str  # linux/amd64
    root: str
    python: str | None  # One that runs clusterctl's programs (transport/python.py); None without
    unusable: tuple[str, ...]  # Each Python that does not run them, with its reason
    images: tuple[HeldImage, ...]
    # Digests (`sha256:...`) of compressed layers that the engine knows from an earlier pull and
    # does not fetch again (overlay2 only).
    digests: frozenset[str]
    free: int  # Free bytes on the disk of the engine's images
    cache_free: int  # Free bytes on the disk of the relay's cache
    one_disk: bool  # Both are the same file system

    def tagged(self, reference: str) -> HeldImage | None:
        """Return the image tagged `reference` (NAME:TAG); None if there is none."""
        return next((image for image in self.images if reference in image.tags), None)

    def common(self, layers: Sequence[str]) -> int:
        """Return the length of the longest prefix of `layers` that an image here starts with."""

        def shared(image: HeldImage) -> int:
            pairs = zip(image.layers, layers, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return max(map(shared, self.images), default=0)


def inspect_engine(driver: ContainerDriver, cache: str = CACHE, reference: str = "") -> EngineState:
    """Query the engine's state in one command. `cache`: the relay's cache directory there;
    `reference`: a name to look up even if the engine does not list it.

    Raises EngineUnavailable, ConnectionFailed, CommandTimedOut.
    """
    result = driver.host_run(driver.stock_argv(cache, reference), timeout=deadlines.ENGINE_STOCK)
    if not result.ok:
        raise engine_error(result.last_lines() or "nothing", driver.host, unavailable=True)
    try:
        return parse_engine_state(result.stdout)
    except MALFORMED as error:
        raise engine_error(
            "its answer about its images cannot be read", driver.host, unavailable=True
        ) from error


def parse_engine_state(text: str) -> EngineState:
    """Parse the output of `driver.stock_argv`: lines of a word, a tab, a value. Raises what
    MALFORMED lists."""
    told: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        word, tab, value = line.partition("\t")
        if tab:
            told[word].append(value)
    engine = json.loads(told["engine"][0])
    disks = [line.split("\t") for line in told["disk"]]
    frees = [int(free) * 1024 for free, _ in disks] or [0]
    images = [
        HeldImage(
            id=image["id"],
            tags=tuple(image["tags"] or ()),
            layers=tuple(image["layers"] or ()),
            size=int(image["size"] or 0),
            settings=settings(image["config"]),
        )
        for image in map(json.loads, told["image"])
    ]
    return EngineState(
        version=engine["version"],
        containerd=CONTAINERD in json.dumps(engine["driver"] or ()),
        rootless="name=rootless" in (engine["security"] or ()),
        platform=f"{engine['os']}/{PROCESSORS.get(engine['machine'], engine['machine'])}",
        root=told["root"][0],
        python=next(iter(told["python"]), None),
        unusable=tuple(told["unusable"]),
        images=tuple(dict.fromkeys(images)),
        digests=frozenset(f"sha256:{digits}" for digits in told["digest"]),
        free=frees[0],
        cache_free=frees[-1],
        one_disk=len({device for _, device in disks}) == 1,
    )


def environment(settings: str) -> dict[str, str]:
    """Return the environment variables in an image's `settings`."""
    lines = (line.partition("=") for line in json.loads(settings or "{}").get("Env", ()))
    return {name: value for name, _, value in lines}


def settings(config: Mapping[str, Any] | None) -> str:
    """Return the settings that containers inherit from an image's `config`, as canonical JSON.
    Empty values are dropped: engines differ in whether they list them."""
    kept = {key: (config or {}).get(key) for key in INHERITED}
    return json.dumps({key: value for key, value in kept.items() if value}, sort_keys=True)


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
    """Return those layers with the diff IDs `lacking` that are worth compressing for sending."""
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
            f"{content.reference} is built for {content.platform}, but the host is "
            f"{stock.platform}",
            host=host,
            hint=f"name an image for {stock.platform}, or exclude the host: --limit '!{host}'",
        )
    zstd = any("zstd" in layer.media_type for layer in content.layers)
    if zstd and not stock.containerd and _major(stock.version) < ZSTD_SINCE:
        yield RequirementsNotMet(
            f"{content.reference} has zstd layers, which Docker {stock.version} cannot unpack",
            host=host,
            hint=f"update its Docker to {ZSTD_SINCE} or later, or push it from a docker archive",
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
    """Return the major version of an engine (20 of 20.10.24+dfsg1); 0 if it cannot be parsed, so
    that only features of all versions are used."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0
