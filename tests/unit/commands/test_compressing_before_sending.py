"""Plain layers are compressed for a slow link: those that hosts lack, and that are worth it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.commands.image_source import WORTH_PACKING, ImageSource
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.engine_stock import EngineStock
from clusterctl.transfer.image_origin import LocalOrigin
from tests.fakes.container_engine import FakeDriver, FakeEngine
from tests.fakes.image_archives import MadeImage, layer_tar, tar_of

STOCK = EngineStock(
    version="20.10.24",
    containerd=False,
    rootless=False,
    platform="linux/amd64",
    root="/var/lib/docker",
    python="python3",
    images=(),
    digests=frozenset(),
    free=1 << 40,
    cache_free=1 << 40,
    one_disk=True,
)
IMAGE = MadeImage("acme/vllm:1", (tar_of({"big": bytes(WORTH_PACKING)}), layer_tar("ray", 5000)))


@pytest.fixture
def source(tmp_path: Path) -> ImageSource:
    (tmp_path / "image.tar").write_bytes(IMAGE.legacy())
    return ImageSource(
        IMAGE.name,
        {"gpu1": FakeDriver("gpu1", FakeEngine(), lambda: None)},
        ("gpu1",),
        chosen=str(tmp_path / "image.tar"),
        store=BlobStore(tmp_path / "cache"),
    )


def sent(source: ImageSource, *lacking: int) -> list[str]:
    """Media types of the layers as they would travel."""
    origin = source.find({"gpu1": STOCK})
    assert isinstance(origin, LocalOrigin)
    wanted = [origin.wanted.layers[number] for number in lacking]
    content = origin.supply(wanted, lambda _: None).content
    return [layer.media_type.rpartition(".")[2] for layer in content.layers]


def test_a_slow_link_gets_what_lacks_compressed(source: ImageSource) -> None:
    slow = replace(source, limit_rate=10_000_000)
    assert sent(slow, 0) == ["tar+gzip", "tar"]
    assert sent(slow, 0, 1) == ["tar+gzip", "tar+gzip"]
    assert sent(slow, 1) == ["tar", "tar"], "a layer so small is there before it is compressed"
