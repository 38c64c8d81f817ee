"""Read layers from overlay2's own directories, byte for byte. A program for hosts.

Docker 20.10 to 24 can save an image only as a whole, through a full copy on disk: minutes and tens
of GB for one small layer on top. But for every layer overlay2 keeps what a tar needs besides the
files (tar-split.json.gz: github.com/vbatts/tar-split), from which Docker builds its own archives.
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
    """The directories do not have a known overlay2 layout: use `docker save` instead."""


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
                continue
            if not size:
                continue
            left = size
            path = os.path.join(os.fsencode(self._directory), name.lstrip(b"/"))
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
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


def run(root: str, image: str, directory: str, keep: Set[str], tell: Tell) -> None:
    store = f"{root}/image/overlay2"
    with open(f"{store}/imagedb/content/sha256/{digits(image)}", "rb") as file:
        config = file.read()
    layers: List[OverlayLayer] = []
    diff_ids: List[str] = json.loads(config)["rootfs"]["diff_ids"]
    chain = ""
    for diff_id in diff_ids:
        # ID of the chain of layers up to this one (OCI image spec, ChainID).
        both = f"{chain} {diff_id}".encode()
        chain = "sha256:" + hashlib.sha256(both).hexdigest() if chain else diff_id
        place = f"{store}/layerdb/sha256/{digits(chain)}"
        with open(f"{place}/cache-id") as name:
            files = f"{root}/overlay2/{name.read().strip()}/diff"
        layers.append(OverlayLayer(f"{place}/tar-split.json.gz", files))
    sizes = [layer.size() for layer in layers]
    os.makedirs(directory, mode=0o700, exist_ok=True)
    needed = sum(size for diff_id, size in zip(diff_ids, sizes) if diff_id in keep)
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize < needed + LEFT_FREE:
        sys.exit(f"not enough free space for {needed} bytes in {directory}")
    tell(["config", base64.b64encode(config).decode("ascii")])
    writer = Writer(directory, tell)
    for diff_id, layer, size in zip(diff_ids, layers, sizes):
        kept = writer.write(layer, diff_id, size) if diff_id in keep else None
        tell(["layer", diff_id, size, kept])
    tell(["end"])


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
                self._count += len(chunk)
                if time.monotonic() - self._told > 1:
                    self._told = time.monotonic()
                    self._tell(["at", self._count])
        if hashed.hexdigest() != digits(diff_id):
            os.unlink(path + ".part")
            raise UnknownLayout(f"{diff_id} comes out with other bytes")
        os.rename(path + ".part", path)
        return path


def main(order: Dict[str, Any]) -> None:
    """Read an image. `order`: Docker's `root`, `image` ID, output `directory`, `keep`: diff IDs."""

    def tell(row: List[Any]) -> None:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()

    try:
        run(order["root"], order["image"], order["directory"], set(order["keep"]), tell)
    except (OSError, EOFError, ValueError, LookupError, TypeError, zlib.error, UnknownLayout) as e:
        sys.stderr.write(f"unlike: {e}\n")
        sys.exit(3)
