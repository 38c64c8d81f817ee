"""Contents of an image archive: which images it holds, and which files are their blobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterctl.containers.reference import parse
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.archives.members import Members
from clusterctl.transfer.archives.split import PLAIN
from clusterctl.transfer.content import Blob, ImageContent
from clusterctl.transfer.manifests import (
    INDEXES,
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    NotAnImage,
    PlatformManifest,
    blob_of,
    choose,
    config_facts,
    digest_of,
    document,
    image_content,
    listed,
    made_manifest,
    objects,
    texts,
)

# Annotations with an image's name: the full name in the first, in the other that or only the tag
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


@dataclass(frozen=True)
class ArchiveContents:
    """An image found in an archive."""

    content: ImageContent
    files: Mapping[str, str]  # Digest to the archive's file with the blob's bytes


@dataclass(frozen=True)
class _Entry:
    """An image listed in an OCI index or in manifest.json; `names` may be empty."""

    names: tuple[str, ...]
    manifests: tuple[PlatformManifest, ...] = ()
    docker: Mapping[str, object] | None = None


def read_archive(members: Members, reference: str | None, platform: str | None) -> ArchiveContents:
    """Find the image `reference` for `platform`; the only one if these are None.

    Raises NotAnImage, and RequirementsNotMet that lists the images there are.
    """
    if members.has("index.json"):
        entry = _chosen(list(_layout_entries(members)), reference)
        return _from_layout(members, entry, reference, platform)
    if members.has("manifest.json"):
        entry = _chosen(list(_docker_entries(members)), reference)
        return _from_docker(members, entry, reference, platform)
    raise NotAnImage("it has neither an index.json (OCI layout) nor a manifest.json (docker save)")


def _layout_entries(members: Members) -> Iterator[_Entry]:
    """Yield one entry for each image; the names of one image are merged."""
    named: dict[str, list[str]] = {}
    images: dict[str, tuple[PlatformManifest, ...]] = {}
    index = document(members.read("index.json"), "index.json")
    for descriptor in objects(index.get("manifests"), "manifests of index.json"):
        blob = blob_of(descriptor)
        platforms = _platforms(members, blob) or listed({"manifests": [descriptor]})
        if platforms:
            images[blob.digest] = platforms
            named.setdefault(blob.digest, []).extend(_annotated(descriptor))
    if len(images) > 1 and not any(named.values()):
        # Without names they are one image for several platforms.
        merged = tuple(one for found in images.values() for one in found)
        yield _Entry((), merged)
        return
    for digest, found in images.items():
        yield _Entry(tuple(dict.fromkeys(named[digest])), found)


def _platforms(members: Members, blob: Blob) -> tuple[PlatformManifest, ...]:
    """Return the images of an index that the archive holds: engines save only what they have."""
    if blob.media_type not in INDEXES or not members.has(_path(blob)):
        return ()
    found = listed(document(members.read(_path(blob)), _path(blob)))
    return tuple(one for one in found if _is_here(members, one.blob))


def _is_here(members: Members, manifest: Blob) -> bool:
    if not members.has(_path(manifest)):
        return False
    read = document(members.read(_path(manifest)), _path(manifest))
    return members.has(_path(blob_of(read.get("config"))))


def _annotated(descriptor: Mapping[str, object]) -> list[str]:
    annotations = descriptor.get("annotations")
    if not isinstance(annotations, dict):
        return []
    return [str(annotations[key]) for key in NAMES if annotations.get(key)][:1]


def _docker_entries(members: Members) -> Iterator[_Entry]:
    data = members.read("manifest.json")
    try:
        read = json.loads(data)
    except ValueError as error:
        raise NotAnImage(f"manifest.json is not what `docker save` writes: {error}") from error
    for entry in objects(read, "manifest.json"):
        yield _Entry(texts(entry.get("RepoTags"), "RepoTags of manifest.json"), docker=entry)


def _chosen(entries: list[_Entry], reference: str | None) -> _Entry:
    if not entries:
        raise NotAnImage("it holds no image")
    names = [name for entry in entries for name in entry.names]
    if reference is None or not names:
        if len(entries) == 1:
            return entries[0]
        raise RequirementsNotMet(
            f"it holds {len(entries)} images, but one is expected",
            hint=f"name one of: {', '.join(names)}" if names else "save a single image",
        )
    for entry in entries:
        if any(_same(name, reference) for name in entry.names):
            return entry
    raise RequirementsNotMet(f"{reference} is not in it; it has {', '.join(sorted(names))}")


def _same(name: str, reference: str) -> bool:
    """Return whether an archive's `name` means `reference`; some archives have only the tag."""
    wanted = parse(reference)
    return parse(name).name == wanted.name or ("/" not in name and name == wanted.tag)


def _from_layout(
    members: Members, entry: _Entry, reference: str | None, platform: str | None
) -> ArchiveContents:
    name = reference or next(iter(entry.names), "the image")
    chosen = choose(_with_platforms(members, entry.manifests), platform, name)
    manifest = members.read(_path(chosen.blob))
    if digest_of(manifest) != chosen.blob.digest:
        raise NotAnImage(f"{_path(chosen.blob)} is corrupt: its bytes do not match its digest")
    config = members.read(_path(blob_of(document(manifest, "the manifest").get("config"))))
    content = image_content(name, manifest, config, chosen.blob.media_type)
    for blob in content.layers:
        if members.size(_path(blob)) != blob.size:
            raise NotAnImage(
                f"{_path(blob)} is truncated or corrupt: it should have {blob.size} bytes"
            )
    return ArchiveContents(content, {blob.digest: _path(blob) for blob in content.blobs})


def _with_platforms(
    members: Members, manifests: tuple[PlatformManifest, ...]
) -> list[PlatformManifest]:
    """Return the manifests; platforms that the index lacks come from the configs."""
    return [one if one.platform else _asked(members, one.blob) for one in manifests]


def _asked(members: Members, blob: Blob) -> PlatformManifest:
    config = blob_of(document(members.read(_path(blob)), _path(blob)).get("config"))
    return PlatformManifest(blob, config_facts(members.read(_path(config)))[1])


def _from_docker(
    members: Members, entry: _Entry, reference: str | None, platform: str | None
) -> ArchiveContents:
    """Return the image. Plain layers, the usual ones, are not read: their digests are known."""
    name = reference or next(iter(entry.names), "the image")
    read = entry.docker or {}
    paths = texts(read.get("Layers"), "Layers of manifest.json")
    config_path = str(read.get("Config"))
    config = members.read(config_path)
    diff_ids, said = config_facts(config)
    if len(paths) != len(diff_ids):
        raise NotAnImage(f"it holds {len(paths)} layers, and the config lists {len(diff_ids)}")
    pairs = zip(paths, diff_ids, strict=True)
    layers = [_layer(members, path, diff_id) for path, diff_id in pairs]
    blob = Blob(digest_of(config), len(config), OCI_CONFIG)
    manifest = made_manifest(blob, layers)
    made = Blob(digest_of(manifest), len(manifest), OCI_MANIFEST)
    choose([PlatformManifest(made, said)], platform, name)
    files = {layer.digest: path for layer, path in zip(layers, paths, strict=True)}
    content = image_content(name, manifest, config)
    return ArchiveContents(content, {**files, blob.digest: config_path})


def _layer(members: Members, path: str, diff_id: str) -> Blob:
    codec = members.codec(path)
    if codec == PLAIN:
        return Blob(diff_id, members.size(path), OCI_LAYER)
    return Blob(members.digest(path), members.size(path), f"{OCI_LAYER}+{codec}")


def _path(blob: Blob) -> str:
    return f"blobs/sha256/{blob.hex}"
