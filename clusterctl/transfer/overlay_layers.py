"""Layers out of overlay2's own directories, byte for byte. A program for hosts.

Docker 20.10 to 24 save an image only as a whole, through a copy of all of it on disk: minutes and
tens of GB for one small layer on top. But overlay2 keeps for every layer what a tar needs beside
the files themselves (tar-split.json.gz: github.com/vbatts/tar-split), and Docker makes its own
archives from that. So does this; a layer counts only when its SHA-256 is the diff ID.

    overlay_layers.py ROOT IMAGE DIRECTORY  <diff IDs to keep, a line each

tells, tab-separated:

    config  BASE64
    layer   DIFF_ID SIZE PATH     PATH: - for one that was only measured
    at      COUNT                 bytes written so far
    end                           without it, the list is not whole

Runs as root, under any python3 from 3.6 with the modules of Debian's python3-minimal.
"""

import ast
import base64
import hashlib
import os
import re
import sys
import time
import zlib
from typing import Callable, Iterator, List, Optional, Set, Tuple

CHUNK = 1 << 20
LEFT_FREE = 256 << 20
"""Bytes of disk that others may need."""

ENTRY = re.compile(
    rb'\{"type":([12]),(?:"name":("(?:[^"\\]|\\.)*"),)?(?:"name_raw":"([^"]*)",)?'
    rb'(?:"size":(\d+),)?"payload":(?:"([^"]*)"|null),"position":\d+\}'
)
"""A line of tar-split.json.gz: 1 is a file (of `size` bytes, if any), 2 bytes between files."""

DIFF_IDS = re.compile(rb'"diff_ids":\s*\[([^\]]*)\]')
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Tell = Callable[[str], None]


class Unlike(Exception):
    """This is not overlay2 as it is known here: leave it to `docker save`."""


class Store:
    """What is below the engine's data root."""

    def __init__(self, root: str) -> None:
        self._root = root

    def config(self, image: str) -> bytes:
        path = f"{self._root}/image/overlay2/imagedb/content/sha256/{digits(image)}"
        with open(path, "rb") as file:
            return file.read()

    def layer(self, chain: str) -> "Layer":
        """The layer on top of a chain of layers."""
        place = f"{self._root}/image/overlay2/layerdb/sha256/{digits(chain)}"
        with open(f"{place}/cache-id") as file:
            directory = f"{self._root}/overlay2/{file.read().strip()}/diff"
        return Layer(f"{place}/tar-split.json.gz", directory)


class Layer:
    """One layer's tar, from its parts."""

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
                    raise Unlike(f"{name!r} is shorter than it was")
                left -= len(chunk)
                yield chunk

    def _entries(self) -> Iterator[Tuple[Optional[bytes], int, bytes]]:
        """Name and size of a file, or None and the bytes between two files."""
        for line in lines_of(self._split):
            found = ENTRY.fullmatch(line)
            if found is None:
                raise Unlike(f"an unknown line in {self._split}")
            kind, name, raw_name, size, payload = found.groups()
            if kind == b"2":
                yield None, 0, base64.b64decode(payload or b"")
            else:
                yield file_name(name, raw_name), int(size or 0), b""


def file_name(name: Optional[bytes], raw: Optional[bytes]) -> bytes:
    """Go's JSON escapes are a part of Python's. A name that is no UTF-8 comes in base64."""
    if raw is not None:
        return base64.b64decode(raw)
    text = ast.literal_eval((name or b'""').decode("utf-8"))
    return os.fsencode(text)


def lines_of(path: str) -> Iterator[bytes]:
    """Of a gzip file."""
    unpacker, pending = zlib.decompressobj(31), b""
    with open(path, "rb") as file:
        while True:
            data = file.read(CHUNK)
            pending += unpacker.decompress(data) if data else unpacker.flush()
            complete = pending.split(b"\n")
            pending = complete.pop()
            for line in complete:
                if line:
                    yield line
            if not data:
                break
    if pending:
        yield pending


def digits(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise Unlike(f"{digest!r} is no digest")
    return digest[7:]


def diff_ids(config: bytes) -> List[str]:
    found = DIFF_IDS.search(config)
    if found is None:
        raise Unlike("the image's config names no layers")
    return DIGEST.findall(found.group(1).decode("ascii"))


def chains(layers: List[str]) -> Iterator[str]:
    """Names of the chains that end in each layer (OCI image spec, ChainID)."""
    chain = ""
    for layer in layers:
        both = f"{chain} {layer}"
        chain = "sha256:" + hashlib.sha256(both.encode()).hexdigest() if chain else layer
        yield chain


class Writer:
    """Writes layers that are kept into a directory."""

    def __init__(self, directory: str, tell: Tell) -> None:
        self._directory, self._tell = directory, tell
        self._count, self._told = 0, time.monotonic()

    def write(self, layer: Layer, diff_id: str, size: int) -> str:
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
            raise Unlike(f"{diff_id} comes out with other bytes")
        os.rename(path + ".part", path)
        return path

    def _passed(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._told > 1:
            self._told = time.monotonic()
            self._tell(f"at\t{self._count}")


def run(root: str, image: str, directory: str, keep: Set[str], tell: Tell) -> None:
    store = Store(root)
    config = store.config(image)
    layers = diff_ids(config)
    found = [store.layer(chain) for chain in chains(layers)]
    sizes = [layer.size() for layer in found]
    os.makedirs(directory, mode=0o700, exist_ok=True)
    insist_on_room(directory, sum(size for name, size in zip(layers, sizes) if name in keep))
    tell(f"config\t{base64.b64encode(config).decode('ascii')}")
    writer = Writer(directory, tell)
    for name, layer, size in zip(layers, found, sizes):
        path = writer.write(layer, name, size) if name in keep else "-"
        tell(f"layer\t{name}\t{size}\t{path}")
    tell("end")


def insist_on_room(directory: str, needed: int) -> None:
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize < needed + LEFT_FREE:
        sys.exit(f"not enough free space for {needed} bytes in {directory}")


def main() -> None:
    def tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    keep = set(sys.stdin.read().split())
    try:
        run(sys.argv[1], sys.argv[2], sys.argv[3], keep, tell)
    except (OSError, ValueError, SyntaxError, zlib.error, Unlike) as error:
        sys.stderr.write(f"unlike: {error}\n")
        sys.exit(3)


if __name__ == "__main__":
    main()
