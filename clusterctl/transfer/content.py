"""Blobs, the images that consist of them, and the manifests that describe them.

A blob is identified by its digest, so it may come from any source: the receiver verifies it. Blobs
are passed on byte for byte, as the first source had them. Media types: OCI image specification 1.1,
and Docker's image manifest version 2, schema 2.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clusterctl.errors import RequirementsNotMet

CHUNK = 1 << 20  # Bytes read, hashed and passed on at a time


def is_digest(text: str) -> bool:
    """Return whether `text` has the form of `Blob.hex`: 64 hexadecimal digits."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


@dataclass(frozen=True)
class Blob:
    """Content that is identified by its digest, such as a layer, a config or a file."""

    digest: str  # `sha256:` and 64 hexadecimal digits
    size: int  # Bytes
    media_type: str = "application/octet-stream"

    @property
    def hex(self) -> str:
        return self.digest.partition(":")[2]


@dataclass(frozen=True)
class ImageContent:
    """An image for one platform: its manifest, byte for byte, and the blobs it lists."""

    reference: str  # As users write it: vllm/vllm-openai:v0.33.0
    manifest: bytes
    media_type: str  # Of the manifest
    config: Blob
    layers: tuple[Blob, ...]  # In the manifest's order, the base first
    # Digests of the uncompressed layers, in the same order; engines report them as RootFS.Layers.
    diff_ids: tuple[str, ...]
    platform: str  # As in the image config: linux/amd64

    @property
    def blobs(self) -> tuple[Blob, ...]:
        return (self.config, *self.layers)

    @property
    def size(self) -> int:
        """Bytes to send to a host that has none of the blobs."""
        return sum(blob.size for blob in self.blobs)


class BlobSource(Protocol):
    """A source of blobs: a registry, an archive, a directory, an engine."""

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """Yield the blob's bytes from `offset` on, at most CHUNK at a time. Raises StepFailed, with
        a hint, when the source fails."""


class ImageSource(BlobSource, Protocol):
    """A source of one image."""

    @property
    def content(self) -> ImageContent: ...


@dataclass(frozen=True)
class Location:
    """`size` bytes of the file `path`, from byte `offset` on."""

    path: Path
    offset: int
    size: int


OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"

INDEXES = (OCI_INDEX, DOCKER_INDEX)
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
PLAIN_LAYERS = (OCI_LAYER, DOCKER_LAYER)

# Largest manifest or config that is read, in bytes; registries refuse manifests over 4 MiB.
LARGEST_DOCUMENT = 8 << 20


class NotAnImage(ValueError):
    """A manifest, config or archive is malformed; the message says how."""


@dataclass(frozen=True)
class PlatformManifest:
    """A manifest that an index lists."""

    blob: Blob
    platform: str  # linux/amd64, linux/arm64/v8; empty if the index has none


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def document(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises NotAnImage naming `what`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotAnImage(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise NotAnImage(f"{what} is not a JSON object")
    return found


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """Return a list of JSON objects; null counts as empty. Raises NotAnImage naming `what`."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise NotAnImage(f"{what} is not a list of objects")
    return found


def texts(value: Any, what: str) -> tuple[str, ...]:
    """Return a tuple of strings; null counts as empty. Raises NotAnImage naming `what`."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise NotAnImage(f"{what} is not a list of strings")
    return tuple(found)


def blob_of(descriptor: Any) -> Blob:
    """Return an OCI descriptor as a blob. Raises NotAnImage."""
    try:
        digest, size = str(descriptor["digest"]), int(descriptor["size"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotAnImage(f"a descriptor has no digest or size: {descriptor}") from error
    if size < 0:
        raise NotAnImage(f"{digest} cannot have {size} bytes")
    kind = str(descriptor.get("mediaType", "application/octet-stream"))
    return Blob(_require_digest(digest), size, kind)


def _require_digest(text: str) -> str:
    """Raise NotAnImage unless `text` is a sha256 digest: digests become file names."""
    algorithm, _, digits = text.partition(":")
    if algorithm != "sha256" or not is_digest(digits):
        raise NotAnImage(f"{text} is not a sha256 digest")
    return text


def listed(index: dict[str, Any]) -> tuple[PlatformManifest, ...]:
    """Return the images of an index, without attestations and other entries that are not images
    (platform unknown/unknown)."""
    found = []
    for descriptor in objects(index.get("manifests"), "manifests of the index"):
        platform = _spelled(descriptor.get("platform"))
        if platform != "unknown/unknown":
            found.append(PlatformManifest(blob_of(descriptor), platform))
    return tuple(found)


def choose(
    manifests: Sequence[PlatformManifest], platform: str | None, reference: str
) -> PlatformManifest:
    """Return the manifest for `platform`; the only one if `platform` is None or it has none.

    Raises RequirementsNotMet, listing the available platforms.
    """
    if len(manifests) == 1 and (platform is None or not manifests[0].platform):
        return manifests[0]
    named = [one for one in manifests if one.platform]
    fitting = [one for one in named if platform and fits(one.platform, platform)]
    if fitting:
        return fitting[0]
    raise wrong_platform(reference, platform, (one.platform for one in manifests))


def wrong_platform(
    reference: str, platform: str | None, offered: Iterable[str]
) -> RequirementsNotMet:
    found = ", ".join(sorted({one or "an unnamed platform" for one in offered})) or "nothing"
    if platform is None:
        summary = f"{reference} is for several platforms: {found}"
        return RequirementsNotMet(summary, hint="choose one: --platform linux/amd64")
    return RequirementsNotMet(
        f"{reference} does not exist for {platform}; it exists for {found}",
        hint="name an image built for the hosts' processors",
    )


def fits(offered: str, wanted: str) -> bool:
    """Return whether an image for `offered` runs on `wanted`. A missing variant fits any."""
    system, machine, *variant = offered.split("/")
    wanted_system, wanted_machine, *wanted_variant = wanted.split("/")
    same = (system, machine) == (wanted_system, wanted_machine)
    return same and (not variant or not wanted_variant or variant == wanted_variant)


def image_content(
    reference: str, manifest: bytes, config: bytes, media_type: str = ""
) -> ImageContent:
    """Return the image of a manifest and its config, both byte for byte. Raises NotAnImage."""
    read = document(manifest, "the manifest")
    if "config" not in read:
        raise NotAnImage("the manifest names no config (schema 1 is not supported)")
    blob = blob_of(read["config"])
    if digest_of(config) != blob.digest:
        raise NotAnImage(f"the config's bytes are not those of {blob.digest}")
    diff_ids, platform = config_facts(config)
    layers = tuple(map(blob_of, objects(read.get("layers"), "layers of the manifest")))
    if len(layers) != len(diff_ids):
        raise NotAnImage(f"{len(layers)} layers are listed, and the config has {len(diff_ids)}")
    kind = str(read.get("mediaType") or media_type or OCI_MANIFEST)
    return ImageContent(reference, manifest, kind, blob, layers, diff_ids, platform)


def config_facts(config: bytes) -> tuple[tuple[str, ...], str]:
    """Return the diff IDs and the platform in an image's config. Raises NotAnImage."""
    read = document(config, "the config")
    root = read.get("rootfs")
    if not isinstance(root, dict) or root.get("diff_ids") is None:
        raise NotAnImage("the config lists no layers (rootfs.diff_ids)")
    diff_ids = texts(root["diff_ids"], "rootfs.diff_ids of the config")
    return tuple(map(_require_digest, diff_ids)), _spelled(read)


def made_manifest(config: Blob, layers: Iterable[Blob]) -> bytes:
    """Build an OCI manifest; the same input gives the same bytes."""
    read = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor(Blob(config.digest, config.size, OCI_CONFIG)),
        "layers": [descriptor(layer) for layer in layers],
    }
    return json.dumps(read, separators=(",", ":")).encode()


def descriptor(blob: Blob) -> dict[str, object]:
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}


def _spelled(platform: Any) -> str:
    """Return os/architecture[/variant] of an index entry or a config; empty if there is none."""
    if not isinstance(platform, dict) or not platform.get("architecture"):
        return ""
    parts = [platform.get("os") or "linux", platform["architecture"], platform.get("variant")]
    return "/".join(str(part) for part in parts if part)
