"""Contents of an image archive: its files, the images in it, and which files are their blobs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clusterctl.containers.reference import parse
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.archives import split
from clusterctl.transfer.archives.split import PLAIN, normal
from clusterctl.transfer.content import (
    INDEXES,
    LARGEST_DOCUMENT,
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    Blob,
    ImageContent,
    Location,
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

START = 8  # Bytes at the start of a file that show its compression

# Annotations with an image's name: the full name; the full name or only the tag
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


class ArchiveFile(Protocol):
    """A file of an archive."""

    @property
    def size(self) -> int: ...

    @property
    def codec(self) -> str:
        """The compression: gzip, zstd, or `-` for none."""

    @property
    def place(self) -> Location | None:
        """Location of the bytes; None if they were not kept."""

    def read(self) -> bytes:
        """Return a manifest or config. Raises NotAnImage if it is too large or not JSON."""

    def hashed(self) -> str:
        """Return the digest; may have to read the whole file."""


class Members(dict[str, ArchiveFile]):
    """Files of an archive by normalized path: no leading `./`, links followed. Raises NotAnImage
    for a missing file."""

    def __missing__(self, name: str) -> ArchiveFile:
        raise NotAnImage(f"{name} is missing")


@dataclass(frozen=True)
class LocalFile:
    """A file on this machine. `hashing` returns the digest of the bytes at a location."""

    name: str
    place: Location
    hashing: Callable[[Location], str]

    @property
    def size(self) -> int:
        return self.place.size

    @property
    def codec(self) -> str:
        return split.codec(self._start(START))

    def read(self) -> bytes:
        if self.size > LARGEST_DOCUMENT:
            raise NotAnImage(f"{self.name} is unexpectedly large: {self.size} bytes")
        return self._start(self.size)

    def hashed(self) -> str:
        return self.hashing(self.place)

    def _start(self, count: int) -> bytes:
        with self.place.path.open("rb") as file:
            file.seek(self.place.offset)
            return file.read(min(self.size, count))


def tar_places(path: Path) -> dict[str, Location]:
    """Return where each file is in a tar, without unpacking. Raises NotAnImage."""
    places: dict[str, Location] = {}
    links: dict[str, str] = {}
    with tarfile.open(path, "r:") as tar:
        try:
            for member in tar:
                name = normal(member.name)
                if member.isreg():
                    places[name] = Location(path, member.offset_data, member.size)
                elif member.issym():
                    links[name] = normal(f"{Path(name).parent}/{member.linkname}")
                elif member.islnk():
                    links[name] = normal(member.linkname)
        except tarfile.TarError as error:
            last = next(reversed(places), "its first header")
            raise NotAnImage(f"it is truncated or damaged at or after {last}") from error
    size = path.stat().st_size
    for name, place in places.items():
        if place.offset + place.size > size:
            raise NotAnImage(f"it is truncated: it ends within {name}")
    targets = {name: followed(name, links) for name in links}
    return places | {name: places[target] for name, target in targets.items() if target in places}


def followed(name: str, links: Mapping[str, str]) -> str:
    """Return the target of a chain of links; empty if the links form a cycle."""
    for _ in range(len(links) + 1):
        if name not in links:
            return name
        name = links[name]
    return ""


def directory_places(directory: Path) -> dict[str, Location]:
    """Return every file below `directory`, by relative path."""
    return {
        str(path.relative_to(directory)): Location(path, 0, path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@dataclass(frozen=True)
class SplitFile:
    """A file as `split` reported it."""

    name: str
    size: int
    digest: str
    place: Location | None
    codec: str = PLAIN
    text: bytes | None = None  # The content of small JSON files

    def read(self) -> bytes:
        if self.text is None:
            raise NotAnImage(f"{self.name} is not JSON")
        return self.text

    def hashed(self) -> str:
        return self.digest


def split_members(told: str, directory: Path) -> Members:
    """Return the files of a stream that `split` wrote into `directory`, possibly on another host.
    `told`: the output of `split`."""
    found, links = Members(), {}
    for line in told.splitlines():
        match json.loads(line):
            case ["file", str(name), int(size), str(digits), bool(kept), str(codec)]:
                place = Location(directory / digits, 0, size) if kept else None
                found[name] = SplitFile(name, size, f"sha256:{digits}", place, codec)
            case ["text", str(name), int(size), str(digits), bool(kept), str(text)]:
                place = Location(directory / digits, 0, size) if kept else None
                data = text.encode("utf-8", "surrogateescape")
                found[name] = SplitFile(name, size, f"sha256:{digits}", place, text=data)
            case ["link", str(name), str(target)]:
                links[name] = target
    for name in links:
        if (target := followed(name, links)) in found:
            found[name] = found[target]
    return found


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

    Raises NotAnImage, and RequirementsNotMet, listing the images in it.
    """
    if "index.json" in members:
        entry = _chosen(list(_layout_entries(members)), reference)
        return _from_layout(members, entry, reference, platform)
    if "manifest.json" not in members:
        raise NotAnImage(
            "it has neither an index.json (OCI layout) nor a manifest.json (docker save)"
        )
    try:
        read = json.loads(members["manifest.json"].read())
    except (ValueError, RecursionError) as error:
        raise NotAnImage(f"manifest.json is not what `docker save` writes: {error}") from error
    entries = [
        _Entry(texts(each.get("RepoTags"), "RepoTags of manifest.json"), docker=each)
        for each in objects(read, "manifest.json")
    ]
    return _from_docker(members, _chosen(entries, reference), reference, platform)


def _layout_entries(members: Members) -> Iterator[_Entry]:
    """Yield one entry for each image; the names of one image are merged."""
    named: dict[str, list[str]] = {}
    images: dict[str, tuple[PlatformManifest, ...]] = {}
    index = document(members["index.json"].read(), "index.json")
    for descriptor in objects(index.get("manifests"), "manifests of index.json"):
        blob = blob_of(descriptor)
        platforms = _platforms(members, blob) or listed({"manifests": [descriptor]})
        if platforms:
            images[blob.digest] = platforms
            annotations = descriptor.get("annotations")
            known = annotations if isinstance(annotations, dict) else {}
            names = [str(known[key]) for key in NAMES if known.get(key)]
            named.setdefault(blob.digest, []).extend(names[:1])
    if len(images) > 1 and not any(named.values()):
        # Without names they are one image for several platforms.
        merged = tuple(one for found in images.values() for one in found)
        yield _Entry((), merged)
        return
    for digest, found in images.items():
        yield _Entry(tuple(dict.fromkeys(named[digest])), found)


def _platforms(members: Members, blob: Blob) -> tuple[PlatformManifest, ...]:
    """Return those images of an index that are in the archive: engines save only what they have."""
    if blob.media_type not in INDEXES or _path(blob) not in members:
        return ()

    def is_here(manifest: Blob) -> bool:
        return _path(manifest) in members and _config_path(members, manifest) in members

    found = listed(document(members[_path(blob)].read(), _path(blob)))
    return tuple(one for one in found if is_here(one.blob))


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
    wanted = parse(reference)
    for entry in entries:
        for name in entry.names:  # Some archives have only the tag.
            if parse(name).name == wanted.name or ("/" not in name and name == wanted.tag):
                return entry
    raise RequirementsNotMet(f"{reference} is not in it; it has {', '.join(sorted(names))}")


def _from_layout(
    members: Members, entry: _Entry, reference: str | None, platform: str | None
) -> ArchiveContents:
    name = reference or next(iter(entry.names), "the image")
    manifests = [
        # A platform that the index lacks is in the config.
        one
        if one.platform
        else PlatformManifest(
            one.blob, config_facts(members[_config_path(members, one.blob)].read())[1]
        )
        for one in entry.manifests
    ]
    chosen = choose(manifests, platform, name)
    manifest = members[_path(chosen.blob)].read()
    if digest_of(manifest) != chosen.blob.digest:
        raise NotAnImage(f"{_path(chosen.blob)} is corrupt: its bytes do not match its digest")
    config_blob = blob_of(document(manifest, "the manifest").get("config"))
    config = members[_path(config_blob)].read()
    content = image_content(name, manifest, config, chosen.blob.media_type)
    for blob in content.layers:
        if members[_path(blob)].size != blob.size:
            raise NotAnImage(
                f"{_path(blob)} is truncated or corrupt: it should have {blob.size} bytes"
            )
    return ArchiveContents(content, {blob.digest: _path(blob) for blob in content.blobs})


def _from_docker(
    members: Members, entry: _Entry, reference: str | None, platform: str | None
) -> ArchiveContents:
    """Return the image. Uncompressed layers, as usual, are not read: their digests are known."""
    name = reference or next(iter(entry.names), "the image")
    read = entry.docker or {}
    paths = texts(read.get("Layers"), "Layers of manifest.json")
    config_path = str(read.get("Config"))
    config = members[config_path].read()
    diff_ids, said = config_facts(config)
    if len(paths) != len(diff_ids):
        raise NotAnImage(f"it holds {len(paths)} layers, and the config lists {len(diff_ids)}")
    layers = []
    for path, diff_id in zip(paths, diff_ids, strict=True):
        file = members[path]
        plain = (codec := file.codec) == PLAIN
        digest = diff_id if plain else file.hashed()
        layers.append(Blob(digest, file.size, OCI_LAYER if plain else f"{OCI_LAYER}+{codec}"))
    blob = Blob(digest_of(config), len(config), OCI_CONFIG)
    manifest = made_manifest(blob, layers)
    made = Blob(digest_of(manifest), len(manifest), OCI_MANIFEST)
    choose([PlatformManifest(made, said)], platform, name)
    files = {layer.digest: path for layer, path in zip(layers, paths, strict=True)}
    content = image_content(name, manifest, config)
    return ArchiveContents(content, {**files, blob.digest: config_path})


def _config_path(members: Members, manifest: Blob) -> str:
    """Return the config file that a manifest of the archive names."""
    read = document(members[_path(manifest)].read(), _path(manifest))
    return _path(blob_of(read.get("config")))


def _path(blob: Blob) -> str:
    return f"blobs/sha256/{blob.hex}"
