"""Images of an overlay2 engine, read layer by layer from the engine's own directories."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator
from typing import Any

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.failures import DISK, in_time
from clusterctl.containers.image_stream import silence_limit
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.content import Blob
from clusterctl.transfer.engine_image import HostImage
from clusterctl.transfer.engine_state import EngineState, HeldImage
from clusterctl.transfer.manifests import (
    OCI_LAYER,
    OCI_MANIFEST,
    digest_of,
    image_content,
    made_manifest,
)
from clusterctl.transport import python
from clusterctl.transport.base import Channel, lines
from clusterctl.units import MIB

READER = python.Program("clusterctl.transfer", ("overlay_layers",))


def overlay_image(
    driver: ContainerDriver,
    stock: EngineState,
    held: HeldImage,
    reference: str,
    directory: str,
    keep: Collection[str],
    say: Say,
) -> HostImage | None:
    """Write the layers of `held` in `keep` (diff IDs) to files on its host, in `directory`.

    Returns None if `docker save` must be used instead: another image store, no root, an unknown
    layout. Raises RequirementsNotMet if there is no room, CommandTimedOut.
    """
    if stock.containerd or stock.python is None:
        return None
    order = {"root": stock.root, "image": held.id, "directory": directory, "keep": list(keep)}
    reading = in_time("reading the image's layers", driver.host, DISK)
    with driver.host_open(python.argv()) as channel, reading:
        channel.settimeout(silence_limit(held.size))
        python.begin(channel, READER, order)
        channel.close_stdin()
        told = list(_told(channel, say))
        if channel.wait(timeout=deadlines.STREAM_END) != 0:
            _insist_on_room(channel.stderr_tail(), driver.host)
            return None
    try:
        return _image(told, f"{stock.root}/image/overlay2/imagedb/content/sha256", reference)
    except (ValueError, LookupError, TypeError):  # not the program's output format
        return None


def _told(channel: Channel, say: Say) -> Iterator[list[Any]]:
    for line in lines(channel):
        row = json.loads(line)
        if row[0] == "at":
            say(f"reading layers: {row[1] / MIB:.0f} MiB")
        else:
            yield row


def _insist_on_room(words: str, host: str) -> None:
    if "not enough free space" in words:
        raise RequirementsNotMet(
            "there is not enough room for the layers that other hosts lack",
            host=host,
            hint="make room: df -h /var/cache",
            detail=words.strip(),
        )


def _image(told: list[list[Any]], configs: str, reference: str) -> HostImage | None:
    if ["end"] not in told:
        return None
    config = next(base64.b64decode(row[1]) for row in told if row[0] == "config")
    layers = [row[1:] for row in told if row[0] == "layer"]
    described = Blob(digest_of(config), len(config))
    blobs = [Blob(digest, size, OCI_LAYER) for digest, size, _ in layers]
    content = image_content(reference, made_manifest(described, blobs), config, OCI_MANIFEST)
    paths = {digest: path for digest, _, path in layers if path is not None}
    return HostImage(content, {**paths, described.digest: f"{configs}/{described.hex}"})
