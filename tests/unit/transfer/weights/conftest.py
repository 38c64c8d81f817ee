"""Small models in temporary directories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.model import Host
from clusterctl.transfer.weights import staging
from clusterctl.transfer.weights.directory import Tree, manifest_of, read_tree
from clusterctl.transfer.weights.hashing import HashCache
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.on_host import HostModels, look_at_models
from clusterctl.transfer.weights.staging import Need, need
from clusterctl.transport.local import LocalTransport

MakeModel = Callable[..., Path]


def safetensors(size: int) -> bytes:
    """A whole file with one tensor of `size` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    data = bytes(i % 251 for i in range(size))
    return len(header).to_bytes(8, "little") + header + data


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Makes a directory that holds a whole model of two shards, and `more` files."""

    def make(name: str = "Tiny-1B", **more: bytes) -> Path:
        directory = tmp_path / "here" / name
        directory.mkdir(parents=True)
        index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        files = {
            "config.json": b'{"model_type": "llama"}',
            "tokenizer.json": b"{}",
            "model.safetensors.index.json": json.dumps(index).encode(),
            "model-1.safetensors": safetensors(3000),
            "model-2.safetensors": safetensors(5000),
            **more,
        }
        for path, data in files.items():
            (directory / path).write_bytes(data)
        return directory

    return make


@pytest.fixture
def here() -> LocalTransport:
    """This machine as a host."""
    return LocalTransport(Host(name="gpu1", address="localhost"))


@pytest.fixture
def models(tmp_path: Path) -> str:
    """The models directory of the host; it does not exist yet."""
    return f"{tmp_path}/data/models"


def hashed(directory: Path, tmp_path: Path) -> tuple[Tree, Manifest]:
    """The model as it is before it is sent."""
    tree = read_tree(directory)
    return tree, manifest_of(tree, cache=HashCache(tmp_path / "hashes"))


def bring(tree: Tree, manifest: Manifest, found: Need, models: str) -> None:
    """What a chain does: each content to its place."""
    sources = {file.path: file.source for file in tree.files}
    spots = staging.places(manifest, models)
    wanted = {blob.digest for blob in found.brought}
    for file in manifest.files:
        if file.blob.digest in wanted:
            shutil.copyfile(sources[file.path], spots[file.blob.digest].path)


def deliver(tree: Tree, manifest: Manifest, here: LocalTransport, models: str) -> HostModels:
    """All of it to `here`, and what a look there shows then."""
    found = need(manifest, look_at_models(here, models))
    staging.prepare(here, manifest, found, models)
    bring(tree, manifest, found, models)
    staging.settle(here, manifest, models)
    return look_at_models(here, models)
