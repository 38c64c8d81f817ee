"""Small models in temporary directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.inventory.model import Host
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
