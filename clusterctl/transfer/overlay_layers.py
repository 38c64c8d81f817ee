"""Read layers from overlay2's own directories, byte for byte. A program for hosts.

Docker 20.10 to 24 save an image only as a whole, through a full copy on disk: minutes and tens of
GB for one small layer on top. But overlay2 keeps for every layer what a tar needs besides the
files (tar-split.json.gz: github.com/vbatts/tar-split), and Docker builds its own archives from it.
So does this program; it accepts a layer only if its SHA-256 is the diff ID.

Output, one JSON list per line:

    ["config", BASE64]
    ["layer", DIFF_ID, SIZE, PATH]    PATH: null for one that was only measured
    ["at", COUNT]                     bytes written so far, at most once a second
    ["end"]                           without it, the output is incomplete

Runs as root.
"""

import base64
import gzip
import hashlib
import json
import os
import re
import sys
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

CHUNK = 1 << 20
LEFT_FREE = 256 << 20  # bytes of disk that stay free for others

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
FILE, BYTES = 1, 2  # kinds of entries in tar-split.json.gz: a file, the bytes between two files

Tell = Callable[[List[Any]], None]


class UnknownLayout(Exception):
    """The directories do not have a known overlay2 layout: use `docker save`."""


class Store:
    """Image configs and layers below Docker's data root, in overlay2's layout."""

    def __init__(self, root: str) -> None:
        self._root = root

    def config(self, image: str) -> bytes:
        path = f"{self._root}/image/overlay2/imagedb/content/sha256/{digits(image)}"
        with open(path, "rb") as file:
            return file.read()

    def layer(self, chain: str) -> "OverlayLayer":
        """Return the top layer of the chain of layers that has the chain ID `chain`."""
        place = f"{self._root}/image/overlay2/layerdb/sha256/{digits(chain)}"
        with open(f"{place}/cache-id") as file:
            directory = f"{self._root}/overlay2/{file.read().strip()}/diff"
        return OverlayLayer(f"{place}/tar-split.json.gz", directory)


class OverlayLayer:
    """One layer's tar, assembled from its tar-split record and its files."""

    def __init__(self, split: str, directory: str) -> None:
        self._split, self._directory = split, directory

    def size(self) -> int:
        return sum(len(raw) if name is None else size for name, size, raw in self._entries())

    def chunks(self) -> Iterator[bytes]:
        for name, size, raw in self._entries():
            if name is None:
                yield raw
            elif size:
                yield from self._file(name, size)

    def _file(self, name: bytes, size: int) -> Iterator[bytes]:
        path = os.path.join(os.fsencode(self._directory), name.lstrip(b"/"))
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            left = size
            while left:
                chunk = file.read(min(left, CHUNK))
                if not chunk:
                    raise UnknownLayout(f"{name!r} is shorter than it was")
                left -= len(chunk)
                yield chunk

    def _entries(self) -> Iterator[Tuple[Optional[bytes], int, bytes]]:
        """Yield name and size of each file, and None with the bytes between two files."""
        with gzip.open(self._split) as file:
            for line in file:
                entry = json.loads(line)
                if entry["type"] == BYTES:
                    yield None, 0, base64.b64decode(entry.get("payload") or b"")
                elif entry["type"] == FILE:
                    raw = entry.get("name_raw")  # a name that is not UTF-8
                    name = base64.b64decode(raw) if raw else os.fsencode(entry.get("name", ""))
                    yield name, int(entry.get("size") or 0), b""
                else:
                    raise UnknownLayout(f"an unknown line in {self._split}")


def digits(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise UnknownLayout(f"{digest!r} is not a digest")
    return digest[7:]


def chains(layers: List[str]) -> Iterator[str]:
    """Yield the chain ID that ends in each layer (OCI image spec, ChainID)."""
    chain = ""
    for layer in layers:
        both = f"{chain} {layer}"
        chain = "sha256:" + hashlib.sha256(both.encode()).hexdigest() if chain else layer
        yield chain


class Writer:
    """Writes layers to files in a directory and reports progress."""

    def __init__(self, directory: str, tell: Tell) -> None:
        self._directory, self._tell = directory, tell
        self._count, self._told = 0, time.monotonic()

    def write(self, layer: OverlayLayer, diff_id: str, size: int) -> str:
        path = os.path.join(self._directory, digits(diff_id))
        if os.path.exists(path) and os.path.getsize(path) == size:
            return path
        hashed = hashlib.sha256()
        with open(path + ".part", "wb") as file:
            for chunk in layer.chunks():
                hashed.update(chunk)
                file.write(chunk)
                self._passed(len(chunk))
        if hashed.hexdigest() != digits(diff_id):
            os.unlink(path + ".part")
            raise UnknownLayout(f"{diff_id} comes out with other bytes")
        os.rename(path + ".part", path)
        return path

    def _passed(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._told > 1:
            self._told = time.monotonic()
            self._tell(["at", self._count])


def run(root: str, image: str, directory: str, keep: Set[str], tell: Tell) -> None:
    store = Store(root)
    config = store.config(image)
    layers: List[str] = json.loads(config)["rootfs"]["diff_ids"]
    found = [store.layer(chain) for chain in chains(layers)]
    sizes = [layer.size() for layer in found]
    os.makedirs(directory, mode=0o700, exist_ok=True)
    insist_on_room(directory, sum(size for name, size in zip(layers, sizes) if name in keep))
    tell(["config", base64.b64encode(config).decode("ascii")])
    writer = Writer(directory, tell)
    for name, layer, size in zip(layers, found, sizes):
        tell(["layer", name, size, writer.write(layer, name, size) if name in keep else None])
    tell(["end"])


def insist_on_room(directory: str, needed: int) -> None:
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize < needed + LEFT_FREE:
        sys.exit(f"not enough free space for {needed} bytes in {directory}")


def main(order: Dict[str, Any]) -> None:
    """Read an image. `order`: Docker's `root`, `image` ID, output `directory`, `keep`: diff IDs."""

    def tell(row: List[Any]) -> None:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()

    try:
        run(order["root"], order["image"], order["directory"], set(order["keep"]), tell)
    except (
        OSError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        zlib.error,
        UnknownLayout,
    ) as error:
        sys.stderr.write(f"unlike: {error}\n")
        sys.exit(3)
