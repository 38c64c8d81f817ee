"""Manifests and configs of images: read as registries and archives have them, or made here.

Media types: OCI image specification 1.1, and Docker's image manifest version 2, schema 2.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.content import Blob, ImageContent, is_digest

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

# Bytes of a manifest or config that are read; registries refuse manifests over 4 MiB.
LARGEST_DOCUMENT = 8 << 20


class NotAnImage(ValueError):
    """A document is not what it should be; the text says what is wrong with it."""


@dataclass(frozen=True)
class PlatformManifest:
    """A manifest that an index names."""

    blob: Blob
    platform: str  # linux/amd64, linux/arm64/v8; empty where the index does not say


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def document(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object. Raises NotAnImage, which names `what`."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise NotAnImage(f"{what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise NotAnImage(f"{what} is not a JSON object")
    return found


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of JSON objects; null is an empty one. Raises NotAnImage, which names `what`."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise NotAnImage(f"{what} is not a list of objects")
    return value


def texts(value: Any, what: str) -> tuple[str, ...]:
    """The same for a list of strings."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise NotAnImage(f"{what} is not a list of strings")
    return tuple(value)


def blob_of(descriptor: Any) -> Blob:
    """An OCI descriptor as a blob."""
    try:
        digest, size = str(descriptor["digest"]), int(descriptor["size"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotAnImage(f"a descriptor has no digest or size: {descriptor}") from error
    if size < 0:
        raise NotAnImage(f"{digest} cannot have {size} bytes")
    kind = str(descriptor.get("mediaType", "application/octet-stream"))
    return Blob(_require_digest(digest), size, kind)


def _require_digest(text: str) -> str:
    """Blobs become files of that name, here and on hosts."""
    algorithm, _, digits = text.partition(":")
    if algorithm != "sha256" or not is_digest(digits):
        raise NotAnImage(f"{text} is no sha256 digest")
    return text


def listed(index: dict[str, Any]) -> tuple[PlatformManifest, ...]:
    """The images of an index, without attestations and such (platform unknown/unknown)."""
    found = []
    for descriptor in objects(index.get("manifests"), "manifests of the index"):
        platform = _spelled(descriptor.get("platform"))
        if platform != "unknown/unknown":
            found.append(PlatformManifest(blob_of(descriptor), platform))
    return tuple(found)


def choose(
    manifests: Sequence[PlatformManifest], platform: str | None, reference: str
) -> PlatformManifest:
    """The one for `platform`; the only one where that is None or unsaid.

    Raises RequirementsNotMet that lists what there is.
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
        hint="name an image that is built for the hosts' processors",
    )


def fits(offered: str, wanted: str) -> bool:
    """Whether an image for `offered` runs on `wanted`: a variant is compared where both say it."""
    system, machine, *variant = offered.split("/")
    wanted_system, wanted_machine, *wanted_variant = wanted.split("/")
    same = (system, machine) == (wanted_system, wanted_machine)
    return same and (not variant or not wanted_variant or variant == wanted_variant)


def image_content(
    reference: str, manifest: bytes, config: bytes, media_type: str = ""
) -> ImageContent:
    """The image of a manifest and its config, both byte for byte. Raises NotAnImage."""
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
    """Diff IDs and platform, as an image's config says them. Raises NotAnImage."""
    read = document(config, "the config")
    root = read.get("rootfs")
    if not isinstance(root, dict) or root.get("diff_ids") is None:
        raise NotAnImage("the config lists no layers (rootfs.diff_ids)")
    diff_ids = texts(root["diff_ids"], "rootfs.diff_ids of the config")
    return tuple(map(_require_digest, diff_ids)), _spelled(read)


def made_manifest(config: Blob, layers: Iterable[Blob]) -> bytes:
    """An OCI manifest, with the same bytes wherever and whenever it is made."""
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
    """os/architecture[/variant], as an index or a config has them."""
    if not isinstance(platform, dict) or not platform.get("architecture"):
        return ""
    parts = [platform.get("os") or "linux", platform["architecture"], platform.get("variant")]
    return "/".join(str(part) for part in parts if part)
