"""Images of a Docker engine as sources: saved to this machine, or as files on the engine's host."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Image, Say
from clusterctl.containers.failures import DISK, engine_error, in_time
from clusterctl.containers.image_stream import saved, silence_limit
from clusterctl.containers.meter import Meter
from clusterctl.errors import MALFORMED, ConnectionFailed, RequirementsNotMet, StepFailed
from clusterctl.transfer.archive_image import split_into
from clusterctl.transfer.archives.contents import read_archive, split_members
from clusterctl.transfer.archives.split import BrokenArchive, Read
from clusterctl.transfer.blob_store import BlobStore, StoredImage
from clusterctl.transfer.content import (
    CHUNK,
    OCI_LAYER,
    OCI_MANIFEST,
    Blob,
    ImageContent,
    ImageSource,
    NotAnImage,
    digest_of,
    image_content,
    made_manifest,
)
from clusterctl.transfer.engine_state import EngineState, HeldImage
from clusterctl.transport import python
from clusterctl.transport.base import Channel, lines
from clusterctl.units import MIB

SPLITTER = python.Program("clusterctl.transfer.archives", ("split",))
READER = python.Program("clusterctl.transfer", ("overlay_layers",))

_PROGRESS = re.compile(r'\["at", (\d+)\]$')  # Line of these programs: bytes so far


@dataclass(frozen=True)
class HostImage:
    """An image whose blobs are files of a host. `open` reads them over SSH."""

    content: ImageContent
    paths: Mapping[str, str]  # Digest to file on that host, without the blobs that were not kept
    driver: ContainerDriver = field(compare=False)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        path, host = self.paths[blob.digest], self.driver.host
        reading = in_time(f"reading {path}", host, DISK)
        with self.driver.host_open(["tail", "-c", f"+{offset + 1}", path]) as channel, reading:
            channel.settimeout(60.0)
            while chunk := channel.recv(CHUNK):
                yield chunk
            if channel.wait(timeout=deadlines.STREAM_END) != 0:
                raise StepFailed(
                    f"{path} cannot be read",
                    host=host,
                    hint=f"clusterctl exec --limit {host} -- ls -l {path}",
                    detail=channel.stderr_tail() or None,
                )


def engine_image(
    driver: ContainerDriver, image: Image, reference: str, store: BlobStore, *, say: Say
) -> ImageSource:
    """Save `image` of the operator's own engine into `store`, unless it is there already.

    Raises StepFailed with the engine's message, RequirementsNotMet if there is no room.
    """

    @contextmanager
    def saving() -> Iterator[Read]:
        chunks = saved(driver, image)
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

    name = f"save-{image.id.removeprefix('sha256:')}"
    meter = Meter(lambda text: say(f"docker save: {text}"), image.size)
    with _incomplete(driver.host):
        members = split_into(store, name, saving, meter, needed=image.size)
        found = read_archive(members, None, None)
    return StoredImage(replace(found.content, reference=reference), store)


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
    host = driver.host
    order = {
        "image": image.id,
        "directory": directory,
        "needed": image.size,
        "saving": driver.save_argv(image.id),
        "keep": None if keep is None else list(keep),
    }
    meter = Meter(lambda text: say(f"docker save: {text}"), image.size)
    with driver.host_open(python.argv()) as channel, in_time("docker save", host):
        channel.settimeout(silence_limit(image.size))
        told = _output(channel, SPLITTER, order, meter.reached)
        if channel.wait(timeout=deadlines.STREAM_END) != 0:
            error = python.failure(channel, "docker save", host)
            if isinstance(error, python.PythonMissing | ConnectionFailed):
                raise error
            if "not enough free space" in (error.detail or ""):
                raise RequirementsNotMet(
                    f"not enough room on this host for docker save ({image.size / MIB:.0f} MiB)",
                    host=host,
                    hint="make room: docker system df; docker image prune",
                    detail=error.detail,
                )
            raise engine_error(error.detail or "docker save failed", host)
    with _incomplete(host):
        members = split_members("\n".join(told), Path(directory))
        found = read_archive(members, None, None)
    places = {digest: members[name].place for digest, name in found.files.items()}
    paths = {digest: str(place.path) for digest, place in places.items() if place}
    return HostImage(replace(found.content, reference=reference), paths, driver)


def overlay_image(
    driver: ContainerDriver,
    stock: EngineState,
    held: HeldImage,
    reference: str,
    directory: str,
    keep: Collection[str],
    say: Say,
) -> HostImage | None:
    """Write the layers of `held` in `keep` (diff IDs) to files on its host, in `directory`, from
    overlay2's own directories.

    Returns None if `docker save` must be used instead: another image store, no root, an unknown
    layout. Raises RequirementsNotMet if there is no room, CommandTimedOut.
    """
    if stock.containerd or stock.python is None:
        return None
    order = {"root": stock.root, "image": held.id, "directory": directory, "keep": list(keep)}
    meter = Meter(lambda text: say(f"reading layers: {text}"), None)
    reading = in_time("reading the image's layers", driver.host, DISK)
    with driver.host_open(python.argv()) as channel, reading:
        channel.settimeout(silence_limit(held.size))
        told = _output(channel, READER, order, meter.reached)
        if channel.wait(timeout=deadlines.STREAM_END) != 0:
            words = channel.stderr_tail()
            if "not enough free space" in words:
                raise RequirementsNotMet(
                    "there is not enough room for the layers that other hosts lack",
                    host=driver.host,
                    hint="make room: df -h /var/lib",
                    detail=words.strip(),
                )
            return None
    try:
        content, paths = _layers_read(told, reference, stock.root)
    except (*MALFORMED, NotAnImage, StopIteration):  # not the program's output format
        return None
    return HostImage(content, paths, driver)


def _layers_read(
    told: Sequence[str], reference: str, root: str
) -> tuple[ImageContent, dict[str, str]]:
    """Return the image that the program read in the engine's directory `root`, and the files of its
    blobs. Raises one of MALFORMED, NotAnImage, StopIteration."""
    rows = [json.loads(line) for line in told]
    if ["end"] not in rows:
        raise ValueError("cut short")
    config = next(base64.b64decode(row[1]) for row in rows if row[0] == "config")
    layers = [row[1:] for row in rows if row[0] == "layer"]

    described = Blob(digest_of(config), len(config))
    blobs = [Blob(digest, size, OCI_LAYER) for digest, size, _ in layers]
    content = image_content(reference, made_manifest(described, blobs), config, OCI_MANIFEST)

    paths = {digest: path for digest, _, path in layers if path is not None}
    configs = f"{root}/image/overlay2/imagedb/content/sha256"
    return content, {**paths, described.digest: f"{configs}/{described.hex}"}


def _output(
    channel: Channel, program: python.Program, order: object, reached: Callable[[int], None]
) -> list[str]:
    """Run a program on a host and return its output lines. `reached` is called with the bytes done
    so far, from its progress lines."""
    python.begin(channel, program, order)
    channel.close_stdin()
    told = []
    for line in lines(channel):
        if progress := _PROGRESS.match(line):
            reached(int(progress[1]))
        else:
            told.append(line)
    return told


@contextmanager
def _incomplete(host: str) -> Iterator[None]:
    """Convert the errors of an incomplete or malformed archive in the block to StepFailed."""
    try:
        yield
    except (BrokenArchive, NotAnImage, *MALFORMED) as error:
        raise StepFailed(
            f"docker save wrote an incomplete image: {error}",
            host=host,
            hint="see what the engine says: journalctl -u docker -n 50",
        ) from error
