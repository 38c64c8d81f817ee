"""Load an image on a host with `docker load`, sending only the missing layers."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping

from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.failures import engine_error
from clusterctl.containers.image_stream import silence_limit
from clusterctl.errors import StepFailed
from clusterctl.transfer.content import ImageContent

LOAD = """\
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
tar -xf - -C "$directory" || exit 1
cd "$directory" || exit 1
tar -chf - oci-layout index.json manifest.json blobs | "$@"
"""
# The layers are symbolic links to files in the relay's cache; `tar -h` follows them.


def load_from_cache(
    driver: ContainerDriver, content: ImageContent, config: bytes, paths: Mapping[str, str]
) -> None:
    """Load the missing layers from files on the host (`paths`: digest to path). Raises StepFailed
    with the engine's message, CommandTimedOut."""
    limit = silence_limit(sum(layer.size for layer in content.layers))
    stdin = skeleton(content, config, paths)
    result = driver.host_run(
        ["sh", "-c", LOAD, "load", *driver.load_argv()], stdin=stdin, timeout=limit
    )
    if not result.ok or "Loaded image" not in result.stdout:
        raise engine_error(result.last_lines() or "docker load failed", driver.host)


_BLOCK = 512


def blob_name(digest: str) -> str:
    """Path of a blob in the archive."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def manifest_digest(content: ImageContent) -> str:
    return f"sha256:{hashlib.sha256(content.manifest).hexdigest()}"


def documents(content: ImageContent, config: bytes) -> dict[str, bytes]:
    """Return all members but the layers: path in the archive to content. They contain no tag: a
    loaded image is tagged only after it was checked."""
    digest = manifest_digest(content)
    described = {"mediaType": content.media_type, "digest": digest, "size": len(content.manifest)}
    layers = [blob_name(layer.digest) for layer in content.layers]
    listed = {"Config": blob_name(content.config.digest), "RepoTags": None, "Layers": layers}
    return {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [described]}).encode(),
        "manifest.json": json.dumps([listed]).encode(),
        blob_name(content.config.digest): config,
        blob_name(digest): content.manifest,
    }


def skeleton(content: ImageContent, config: bytes, paths: Mapping[str, str]) -> bytes:
    """Return a small tar: the documents, and a symbolic link for each layer of `paths` (digest to
    file on the host). `tar --dereference` on the host turns it into the archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in documents(content, config).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for digest, path in paths.items():
            entry = tarfile.TarInfo(blob_name(digest))
            entry.type, entry.linkname = tarfile.SYMTYPE, path
            tar.addfile(entry)
    return buffer.getvalue()


def member(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
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
    yield bytes(-size % _BLOCK)
