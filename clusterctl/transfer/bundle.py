"""Archives of images: one file that is an OCI layout and a docker archive.

`clusterctl image push --from`, skopeo (`oci-archive:`) and `docker load` read it. The same images
give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter
from clusterctl.containers.reference import parse, tagged
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.archives.contents import NAMES
from clusterctl.transfer.blob_store import free_space, locked, same_file
from clusterctl.transfer.content import (
    OCI_INDEX,
    Blob,
    ImageContent,
    ImageSource,
    descriptor,
    digest_of,
)
from clusterctl.units import MIB

_HEADER = 1024  # Upper bound of a member's tar header and padding, in bytes


def write_bundle(images: Sequence[ImageSource], path: Path, *, say: Say) -> int:
    """Write `images` to `path`, renamed into place once complete; return its size in bytes.

    Raises RequirementsNotMet (no space, no permission), StepFailed naming a blob whose digest does
    not match, and what the sources raise.
    """
    blobs = {blob.digest: blob for image in images for blob in image.content.blobs}.values()
    total = sum(blob.size + _HEADER for blob in blobs)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("ab") as file:
            # Another process may hold the lock, or may have finished and renamed the file by now.
            if not locked(file) or not same_file(file, part):
                raise StepFailed(
                    f"another process is writing {part}", hint=f"to find it: fuser -v {part}"
                )
            file.truncate(0)
            try:
                _require_room(path, total)
                meter = Meter(lambda text: say(f"writing {path.name}: {text}"), total)
                for chunk in _tar(images):
                    file.write(chunk)
                    meter.reached(meter.bytes + len(chunk))
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
                part.rename(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise RequirementsNotMet(
            f"{path} cannot be written: {error.strerror}", hint=f"ls -ld {path.parent}"
        ) from error
    return size


def _require_room(path: Path, needed: int) -> None:
    free = free_space(path.parent)
    if free < needed:
        raise RequirementsNotMet(
            f"{path} needs {needed / MIB:.0f} MiB, and its disk has {free / MIB:.0f} MiB free",
            hint="make room, or name a file on a larger disk: -o FILE",
        )


def _tar(images: Sequence[ImageSource]) -> Iterator[bytes]:
    members = documents([image.content for image in images])
    for name, data in members.items():
        yield from _member(name, len(data), (data,))
    written = set(members)
    for image in images:
        for blob in image.content.blobs:
            name = blob_name(blob.digest)
            if name not in written:
                written.add(name)
                yield from _member(name, blob.size, _checked(image, blob))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a tar member; the same input gives the same bytes. A wrong `size` raises StepFailed."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    yield entry.tobuf(tarfile.GNU_FORMAT)
    count = 0
    for chunk in chunks:
        count += len(chunk)
        yield chunk
    if count != size:
        raise StepFailed(f"{name} has {count} bytes, but {size} were expected")
    yield bytes(-size % tarfile.BLOCKSIZE)


def _checked(image: ImageSource, blob: Blob) -> Iterator[bytes]:
    hashed = hashlib.sha256()
    for chunk in image.open(blob):
        hashed.update(chunk)
        yield chunk
    if hashed.hexdigest() != blob.hex:
        raise StepFailed(
            f"{blob.digest} of {image.content.reference} does not match the bytes that were read",
            hint="run the same command again; if it fails again, its source is damaged",
        )


def blob_name(digest: str) -> str:
    """Return the path of a blob in an archive."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def documents(contents: Sequence[ImageContent], *, named: bool = True) -> dict[str, bytes]:
    """Return all members except configs and layers: path in the archive to content. Without
    `named`, images have no names and platforms: `docker load` does not tag them."""
    entries, docker_entries, manifests = [], [], {}
    for content in contents:
        manifest = Blob(digest_of(content.manifest), len(content.manifest), content.media_type)
        entry = descriptor(manifest)
        if named:
            name, keys = parse(content.reference), ("os", "architecture", "variant")
            entry["platform"] = dict(zip(keys, content.platform.split("/"), strict=False))
            # Annotations in which containerd and skopeo look up the name.
            entry["annotations"] = dict(zip(NAMES, (name.name, name.tag), strict=True))
        entries.append(entry)
        docker_entries.append(
            {
                "Config": blob_name(content.config.digest),
                "RepoTags": [tagged(content.reference)] if named else None,
                "Layers": [blob_name(layer.digest) for layer in content.layers],
            }
        )
        manifests[blob_name(manifest.digest)] = content.manifest
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    return {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        "manifest.json": _json(docker_entries),
        **manifests,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
