"""An image of the shape of vLLM's, a hundredth of its size: a large base, ever smaller layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LAYERS = (120, 80, 60, 40, 30, 20, 15, 12, 10, 8, 4, 1)
"""MB, unpacked. A real image has as many of consequence, and as unequal ones."""

RANDOM_PART = 0.72
"""Of each file; the rest is text. Then gzip leaves three quarters, as of 420 MB it left 314."""

GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True)
class Layer:
    """A file with a gzip layer."""

    path: Path
    digest: str
    diff_id: str
    size: int
    """Bytes, packed."""


def make_layer(directory: Path, megabytes: int, seed: str) -> Layer:
    """A layer of about that size, the same for the same seed."""
    plain, packed = hashlib.sha256(), hashlib.sha256()
    path = directory / f"{seed}.tar.gz"
    with path.open("wb") as file:
        compressor = gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0)
        for chunk in _tar(megabytes, seed):
            plain.update(chunk)
            compressor.write(chunk)
        compressor.close()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            packed.update(data)
    return Layer(
        path, f"sha256:{packed.hexdigest()}", f"sha256:{plain.hexdigest()}", path.stat().st_size
    )


def _tar(megabytes: int, seed: str) -> Iterator[bytes]:
    source = random.Random(seed)  # noqa: S311  (bytes that do not compress, not secrets)
    text = b"the quick brown fox jumps over the lazy dog, again and again; "
    for number in range(megabytes):
        head = source.randbytes(int(1e6 * RANDOM_PART))
        body = (head + text * 20_000)[:1_000_000]
        entry = tarfile.TarInfo(f"opt/{seed}/file{number}")
        entry.size = len(body)
        yield entry.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)
    yield bytes(1024)


def make_archive(path: Path, reference: str, layers: Sequence[Layer]) -> int:
    """An OCI layout tar with one image of these layers; the image's bytes, packed."""
    config = _config(layers)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _described(CONFIG, _digest(config), len(config)),
            "layers": [_described(GZIP, layer.digest, layer.size) for layer in layers],
        }
    ).encode()
    names = {"org.opencontainers.image.ref.name": reference, "io.containerd.image.name": reference}
    listed = {**_described(MANIFEST, _digest(manifest), len(manifest)), "annotations": names}
    documents = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode(),
        _blob(_digest(config)): config,
        _blob(_digest(manifest)): manifest,
    }
    with tarfile.open(path, "w") as tar:
        for name, data in documents.items():
            _add(tar, name, data)
        for layer in layers:
            tar.add(layer.path, _blob(layer.digest))
    return sum(layer.size for layer in layers) + len(config)


def make_plain_archive(path: Path, reference: str, layers: Sequence[Layer]) -> None:
    """The same image as Docker 20.10 saves it: layers unpacked."""
    config = _config(layers)
    names = [f"{layer.diff_id.removeprefix('sha256:')}/layer.tar" for layer in layers]
    listed = [{"Config": "config.json", "RepoTags": [reference], "Layers": names}]
    with tarfile.open(path, "w") as tar:
        for name, data in (("config.json", config), ("manifest.json", json.dumps(listed).encode())):
            _add(tar, name, data)
        for layer, name in zip(layers, names, strict=True):
            with gzip.open(layer.path) as plain:
                _add(tar, name, plain.read())


def _config(layers: Sequence[Layer]) -> bytes:
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created_by": "benchmark"} for _ in layers],
        }
    ).encode()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def _described(kind: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"
