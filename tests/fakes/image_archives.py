"""Images made in a test, in every form that archives of images have."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clusterctl.containers.reference import parse
from clusterctl.transfer.content import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Blob,
    descriptor,
)


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer_tar(name: str, size: int) -> bytes:
    """A layer with one file; its bytes follow from its name."""
    return tar_of({name: (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]})


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return packed.getvalue()


@dataclass(frozen=True)
class MadeImage:
    """An image of plain layers."""

    name: str
    layers: tuple[bytes, ...]
    architecture: str = "amd64"
    env: tuple[str, ...] = ()

    @cached_property
    def config(self) -> bytes:
        """With blanks that nobody would write: it must travel as it is."""
        read = {
            "os": "linux",
            "architecture": self.architecture,
            "config": {"Cmd": ["/bin/true"], **({"Env": list(self.env)} if self.env else {})},
            "rootfs": {"type": "layers", "diff_ids": [sha256(one) for one in self.layers]},
        }
        return json.dumps(read, indent=3).encode()

    @cached_property
    def manifest(self) -> bytes:
        read: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor(Blob(sha256(self.config), len(self.config), OCI_CONFIG)),
            "layers": [descriptor(Blob(sha256(one), len(one), OCI_LAYER)) for one in self.layers],
        }
        return json.dumps(read, indent=2).encode()

    def legacy(self) -> bytes:
        """As `docker save` of 20.10 writes it: a layer that is there twice is a link."""
        files, links, seen = {}, {}, dict[bytes, str]()
        paths = []
        for number, data in enumerate(self.layers):
            folder = hashlib.sha256(f"{self.name} {number}".encode()).hexdigest()
            path = f"{folder}/layer.tar"
            paths.append(path)
            files[f"{folder}/VERSION"] = b"1.0"
            files[f"{folder}/json"] = b'{"id":"x"}'
            if data in seen:
                links[path] = f"../{seen[data]}"
            else:
                seen[data], files[path] = path, data
        config = f"{sha256(self.config)[7:]}.json"
        entry = {"Config": config, "RepoTags": [self.name], "Layers": paths}
        files[config] = self.config
        files["manifest.json"] = json.dumps([entry]).encode()
        files["repositories"] = b"{}"
        return tar_of(files, links)

    def packed(self) -> bytes:
        """As podman and bazel write it: a docker archive with layers in gzip."""
        paths = [f"{number}.tar.gz" for number in range(len(self.layers))]
        layers = [gzip.compress(data, mtime=0) for data in self.layers]
        entry = {"Config": "config", "RepoTags": [self.name], "Layers": paths}
        files = {"config": self.config, "manifest.json": json.dumps([entry]).encode()}
        return tar_of({**files, **dict(zip(paths, layers, strict=True))})

    @property
    def blobs(self) -> dict[str, bytes]:
        found = (self.manifest, self.config, *self.layers)
        return {f"blobs/sha256/{sha256(data)[7:]}": data for data in found}

    @property
    def entry(self) -> dict[str, Any]:
        """In the index of a layout."""
        return {
            **descriptor(Blob(sha256(self.manifest), len(self.manifest), OCI_MANIFEST)),
            "platform": {"os": "linux", "architecture": self.architecture},
            "annotations": {"io.containerd.image.name": parse(self.name).name},
        }

    def layout(self) -> bytes:
        return tar_of(layout_files(self))

    def layout_in(self, directory: Path) -> Path:
        for name, data in layout_files(self).items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return directory


def layout_files(*images: MadeImage) -> dict[str, bytes]:
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(
            {"schemaVersion": 2, "manifests": [image.entry for image in images]}
        ).encode(),
    }
    for image in images:
        files.update(image.blobs)
    return files


def nested_layout(name: str, *images: MadeImage, missing: tuple[MadeImage, ...] = ()) -> bytes:
    """As the containerd store saves: an index within the index, which also names images that
    were never pulled, and an attestation."""
    attestation = {
        **descriptor(Blob("sha256:" + "a" * 64, 7, OCI_MANIFEST)),
        "platform": {"os": "unknown", "architecture": "unknown"},
    }
    entries = [image.entry for image in (*missing, *images)]
    inner = json.dumps(
        {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*entries, attestation]}
    ).encode()
    files = layout_files(*images)
    files[f"blobs/sha256/{sha256(inner)[7:]}"] = inner
    outer = {
        **descriptor(Blob(sha256(inner), len(inner), OCI_INDEX)),
        "annotations": {"io.containerd.image.name": f"docker.io/{name}"},
    }
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [outer]}).encode()
    return tar_of(files)
