"""Images of a Docker engine: `docker save`, split into blobs while it streams."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from clusterctl import deadlines
from clusterctl.containers import image_stream
from clusterctl.containers.driver import ContainerDriver, Image, Say
from clusterctl.containers.failures import engine_error, in_time
from clusterctl.containers.meter import Meter
from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.archives.contents import read_archive
from clusterctl.transfer.archives.members import SplitMembers
from clusterctl.transfer.archives.split import BrokenArchive, Read
from clusterctl.transfer.archives.split_store import split_into
from clusterctl.transfer.blob_store import BlobStore, StoredImage
from clusterctl.transfer.content import ImageContent, LocalImage
from clusterctl.transfer.manifests import NotAnImage
from clusterctl.transport import python
from clusterctl.transport.base import Channel, lines
from clusterctl.units import MIB

SPLITTER = python.Program("clusterctl.transfer.archives", ("split",))


@dataclass(frozen=True)
class HostImage:
    """An image whose blobs are files of a host."""

    content: ImageContent
    # Digest to file on that host, without the blobs that were not kept.
    paths: Mapping[str, str]


def engine_image(
    driver: ContainerDriver, image: Image, reference: str, store: BlobStore, *, say: Say
) -> LocalImage:
    """Save `image` of the operator's own engine into `store`, unless it is there already.

    Raises StepFailed with the engine's message, RequirementsNotMet if there is no room.
    """
    name = f"save-{image.id.removeprefix('sha256:')}"
    meter = Meter(lambda text: say(f"docker save: {text}"), image.size)
    with _words(driver.host):
        stream = partial(_saving, driver, image)
        members = split_into(store, name, stream, meter, needed=image.size)
        found = read_archive(members, None, None)
    return StoredImage(replace(found.content, reference=reference), store)


@contextmanager
def _saving(driver: ContainerDriver, image: Image) -> Iterator[Read]:
    chunks = image_stream.saved(driver, image)
    pending = b""

    def read(size: int) -> bytes:
        nonlocal pending
        pending = pending or next(chunks, b"")
        data, pending = pending[:size], pending[size:]
        return data

    try:
        yield read
    finally:
        chunks.close()


def save_on_host(
    driver: ContainerDriver,
    image: Image,
    reference: str,
    directory: str,
    *,
    say: Say,
    keep: Collection[str] | None = None,
) -> HostImage:
    """Save `image` on its host as files `directory`/<64 digits>, unless it is there already.

    `keep`: diff IDs of the layers to keep, None for all; other layers are only measured. Requires
    Python there. Raises RequirementsNotMet (room, Python), StepFailed, CommandTimedOut.
    """
    order = {
        "image": image.id,
        "directory": directory,
        "needed": image.size,
        "saving": driver.save_argv(image.id),
        "keep": None if keep is None else list(keep),
    }
    meter = Meter(lambda text: say(f"docker save: {text}"), image.size)
    told = []
    with driver.host_open(python.argv()) as channel, in_time("docker save", driver.host):
        channel.settimeout(image_stream.silence_limit(image.size))
        python.begin(channel, SPLITTER, order)
        channel.close_stdin()
        for line in lines(channel):
            if line.startswith('["at"'):
                meter.reached(int(json.loads(line)[1]))
            else:
                told.append(line)
        if channel.wait(timeout=deadlines.STREAM_END) != 0:
            raise _failure(channel, image, driver.host)
    with _words(driver.host):
        members = SplitMembers("\n".join(told), Path(directory))
        found = read_archive(members, None, None)
    places = {digest: members.location(name) for digest, name in found.files.items()}
    paths = {digest: str(place.path) for digest, place in places.items() if place}
    return HostImage(replace(found.content, reference=reference), paths)


def _failure(channel: Channel, image: Image, host: str) -> ClusterctlError:
    error = python.failure(channel, "docker save", host)
    said = error.detail or ""
    if isinstance(error, python.PythonMissing):
        return error
    if "not enough free space" in said:
        return RequirementsNotMet(
            f"not enough room on this host for docker save ({image.size / MIB:.0f} MiB)",
            host=host,
            hint="make room: docker system df; docker image prune",
            detail=said,
        )
    return engine_error(said or "docker save failed", host)


@contextmanager
def _words(host: str) -> Iterator[None]:
    try:
        yield
    except (BrokenArchive, NotAnImage, ValueError) as error:
        raise StepFailed(
            f"docker save wrote an incomplete image: {error}",
            host=host,
            hint="see what the engine says: journalctl -u docker -n 50",
        ) from error
