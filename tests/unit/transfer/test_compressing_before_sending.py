"""Plain layers are compressed where asked, or for a slow link: those that hosts lack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.engine_state import EngineState
from clusterctl.transfer.image_sources import WORTH_COMPRESSING, ImageFinder, Origin
from tests.fakes.container_engine import FakeDriver, FakeEngine
from tests.fakes.image_archives import MadeImage, layer_tar, tar_of

STOCK = EngineState(
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
IMAGE = MadeImage(
    "acme/vllm:1", (tar_of({"big": bytes(WORTH_COMPRESSING)}), layer_tar("ray", 5000))
)


@pytest.fixture
def source(tmp_path: Path) -> ImageFinder:
    (tmp_path / "image.tar").write_bytes(IMAGE.legacy())
    return ImageFinder(
        IMAGE.name,
        {"gpu1": FakeDriver("gpu1", FakeEngine(), lambda: None)},
        ("gpu1",),
        chosen=str(tmp_path / "image.tar"),
        store=BlobStore(tmp_path / "cache"),
    )


def sent(source: ImageFinder, *lacking: int) -> list[str]:
    """Media types of the layers as they would travel."""
    origin = source.find({"gpu1": STOCK})
    assert isinstance(origin, Origin)
    wanted = [origin.wanted.layers[number] for number in lacking]
    content = origin.supply(wanted, lambda _: None).content
    return [layer.media_type.rpartition(".")[2] for layer in content.layers]


def test_a_slow_link_gets_what_lacks_compressed(source: ImageFinder) -> None:
    slow = replace(source, limit_rate=10_000_000)
    assert sent(slow, 0) == ["tar+gzip", "tar"]
    assert sent(slow, 0, 1) == ["tar+gzip", "tar+gzip"]
    assert sent(slow, 1) == ["tar", "tar"], "a layer so small is there before it is compressed"


@pytest.mark.parametrize(
    ("compress", "rate", "layer"),
    [
        (None, None, "tar"),
        (None, 200_000_000, "tar"),
        (True, None, "tar+gzip"),
        (True, 200_000_000, "tar+gzip"),
        (False, 10_000_000, "tar"),
    ],
)
def test_the_flag_decides(
    source: ImageFinder, compress: bool | None, rate: int | None, layer: str
) -> None:
    said: list[str] = []
    asked = replace(source, compress=compress, limit_rate=rate, say=said.append)
    assert sent(asked, 0) == [layer, "tar"]
    assert any("--compress" in text for text in said) == (compress is None), "who did not say"
