"""Files of an archive: in a tar, in a directory, or split from a stream."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clusterctl.transfer.archives import split
from clusterctl.transfer.archives.split import normal
from clusterctl.transfer.content import Location
from clusterctl.transfer.manifests import LARGEST_DOCUMENT, NotAnImage

START = 8  # Bytes at the start of a file that show its compression


class Members(Protocol):
    """Files of an archive by normalized path: no leading `./`, links followed."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes:
        """Return a manifest or config. Raises NotAnImage if it is missing or too large."""

    def size(self, name: str) -> int:
        """Return the size in bytes. Raises NotAnImage if there is no such file."""

    def digest(self, name: str) -> str:
        """Return the digest; may have to read the whole file."""

    def codec(self, name: str) -> str:
        """Return the compression: gzip, zstd, or `-` for none."""

    def location(self, name: str) -> Location | None:
        """Return where the bytes are; None if they were not kept."""


Hashed = Callable[[Location], str]  # Returns the digest of the bytes there


class FileMembers:
    """Files on this machine, by location."""

    def __init__(self, places: Mapping[str, Location], hashed: Hashed) -> None:
        self._places, self._hashed = places, hashed

    def has(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str) -> bytes:
        place = self._place(name)
        if place.size > LARGEST_DOCUMENT:
            raise NotAnImage(f"{name} is unexpectedly large: {place.size} bytes")
        return self._bytes(place, place.size)

    def size(self, name: str) -> int:
        return self._place(name).size

    def digest(self, name: str) -> str:
        return self._hashed(self._place(name))

    def codec(self, name: str) -> str:
        place = self._place(name)
        return split.codec(self._bytes(place, min(place.size, START)))

    def location(self, name: str) -> Location | None:
        return self._place(name)

    def _place(self, name: str) -> Location:
        try:
            return self._places[name]
        except KeyError as error:
            raise NotAnImage(f"{name} is missing") from error

    def _bytes(self, place: Location, count: int) -> bytes:
        with place.path.open("rb") as file:
            file.seek(place.offset)
            return file.read(count)


def tar_places(path: Path) -> dict[str, Location]:
    """Return where each file of a tar is in it, without unpacking. Raises NotAnImage."""
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
    _insist_complete(path, places)
    return with_links(places, links)


def _insist_complete(path: Path, places: Mapping[str, Location]) -> None:
    size = path.stat().st_size
    for name, place in places.items():
        if place.offset + place.size > size:
            raise NotAnImage(f"it is truncated: it ends within {name}")


def with_links(places: Mapping[str, Location], links: Mapping[str, str]) -> dict[str, Location]:
    found = dict(places)
    for name in links:
        target = followed(name, links)
        if target in places:
            found[name] = places[target]
    return found


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

    size: int
    digest: str
    kept: bool
    codec: str = split.PLAIN
    text: bytes | None = None  # The content of small JSON files


class SplitMembers:
    """Files of a stream that `split` wrote into `directory`, which may be on another host."""

    def __init__(self, told: str, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, SplitFile] = {}
        links: dict[str, str] = {}
        for line in told.splitlines():
            match json.loads(line):
                case ["file", str(name), int(size), str(digits), bool(kept), str(codec)]:
                    self._files[name] = SplitFile(size, f"sha256:{digits}", kept, codec)
                case ["text", str(name), int(size), str(digits), bool(kept), str(text)]:
                    data = text.encode("utf-8", "surrogateescape")
                    self._files[name] = SplitFile(size, f"sha256:{digits}", kept, text=data)
                case ["link", str(name), str(target)]:
                    links[name] = target
        for name in links:
            if (target := followed(name, links)) in self._files:
                self._files[name] = self._files[target]

    def has(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> bytes:
        text = self._file(name).text
        if text is None:
            raise NotAnImage(f"{name} is not JSON")
        return text

    def size(self, name: str) -> int:
        return self._file(name).size

    def digest(self, name: str) -> str:
        return self._file(name).digest

    def codec(self, name: str) -> str:
        return self._file(name).codec

    def location(self, name: str) -> Location | None:
        file = self._file(name)
        path = self._directory / file.digest.removeprefix("sha256:")
        return Location(path, 0, file.size) if file.kept else None

    def _file(self, name: str) -> SplitFile:
        try:
            return self._files[name]
        except KeyError as error:
            raise NotAnImage(f"{name} is missing") from error
