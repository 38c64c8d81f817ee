"""A store of blobs and images made for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.distribution.blob_store import BlobStore
from tests.fakes.image_archives import MadeImage, layer_tar


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache")


@pytest.fixture
def image() -> MadeImage:
    """Its last layer is its first once more; one is larger than a chunk."""
    base = layer_tar("base", 3_000_000)
    return MadeImage("acme/vllm:1", (base, layer_tar("ray", 70_000), base))
