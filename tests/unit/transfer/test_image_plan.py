"""Which way an image comes to a host, and what keeps it from coming: data in, data out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.transfer.content import Blob, ImageContent
from clusterctl.transfer.engine_state import (
    EngineState,
    HeldImage,
    ImageDelivery,
    Method,
    WantedImage,
    choose_delivery,
    problems,
    same_image,
)
from clusterctl.units import GIB

LAYERS = tuple(
    Blob(f"sha256:{number:064x}", (number + 1) * 2 * 1024**2, "application/x.tar+gzip")
    for number in range(3)
)
DIFF_IDS = ("a", "b", "c")
CONTENT = ImageContent(
    "acme/image:1", b"{}", "", Blob("sha256:config", 100), LAYERS, DIFF_IDS, "linux/amd64"
)
WANTED = WantedImage("acme/image:1", DIFF_IDS, frozenset({"sha256:config"}), "{}")


def held(*layers: str, **changes: object) -> HeldImage:
    return replace(HeldImage("sha256:other", (), layers, 1, "{}"), **changes)  # type: ignore[arg-type]


def stock(*images: HeldImage, **changes: object) -> EngineState:
    plain = EngineState(
        version="20.10.24", containerd=False, rootless=False, platform="linux/amd64",
        root="/var/lib/docker", python="python3", unusable=(), images=images,
        digests=frozenset(), free=100 * GIB, cache_free=100 * GIB, one_disk=True,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def known(count: int) -> frozenset[str]:
    return frozenset(layer.digest for layer in LAYERS[:count])


@pytest.mark.parametrize(
    ("has", "delivery"),
    [
        (stock(), ImageDelivery(Method.PULL, LAYERS)),
        (stock(held("x", "y")), ImageDelivery(Method.PULL, LAYERS)),
        (stock(held("a", "b"), digests=known(2)), ImageDelivery(Method.PULL, LAYERS[2:])),
        (stock(held("a", "b")), ImageDelivery(Method.LOAD, LAYERS[2:])),
        (stock(held("a", "b"), digests=known(1)), ImageDelivery(Method.LOAD, LAYERS[2:])),
        (stock(held("a"), held("a", "b", "z")), ImageDelivery(Method.LOAD, LAYERS[2:])),
        (stock(digests=known(3)), ImageDelivery(Method.PULL, LAYERS)),
        (
            stock(held("a", "b"), containerd=True, version="26.1.5"),
            ImageDelivery(Method.PULL, LAYERS[2:]),
        ),
        (stock(held("a", "b"), rootless=True), ImageDelivery(Method.LOAD, LAYERS[2:])),
        (
            stock(held("a"), containerd=True, version="24.0.9", rootless=True),
            ImageDelivery(Method.LOAD, LAYERS),
        ),
    ],
    ids=[
        "nothing there", "another image", "base came by pull", "base came by load",
        "part of the base by pull", "the longest common base counts", "layers that are gone again",
        "containerd knows unpacked layers", "rootless",
        "an old containerd store takes no partial archive",
    ],
)  # fmt: skip
def test_the_way_that_moves_least(has: EngineState, delivery: ImageDelivery) -> None:
    assert choose_delivery(has, CONTENT) == delivery


def test_few_bytes_are_no_reason_to_leave_the_plain_way() -> None:
    small = tuple(replace(layer, size=1000) for layer in LAYERS)
    assert choose_delivery(stock(held("a")), replace(CONTENT, layers=small)).method is Method.PULL


def test_an_image_is_the_same_by_its_id_or_by_all_that_containers_get_of_it() -> None:
    by_id = held(*DIFF_IDS, id="sha256:config", settings="else")
    by_settings = held(*DIFF_IDS, tags=("x:1",))
    other = held(*DIFF_IDS, settings='{"Env": []}')
    assert same_image(stock(by_id), WANTED) == by_id
    assert same_image(stock(other, by_settings), WANTED) == by_settings
    assert same_image(stock(other, held("a", "b")), WANTED) is None
    named = replace(by_settings, tags=("acme/image:1",))
    assert same_image(stock(by_settings, named), WANTED) == named


def found(has: EngineState, content: ImageContent = CONTENT) -> list[str]:
    return [problem.summary for problem in problems("gpu1", has, content)]


def test_room_is_for_packed_and_unpacked_and_for_what_waits() -> None:
    """12 MiB packed, 36 unpacked, 12 in the cache, and 256 for the engine."""
    enough = (12 + 36 + 12 + 256) * 1024**2
    assert found(stock(free=enough)) == []
    (short,) = found(stock(free=enough - 1))
    assert short.startswith("the image needs 0.3 GiB at /var/lib/docker while it is loaded")
    assert found(stock(free=enough - 12 * 1024**2, one_disk=False)) == []
    (cache,) = found(stock(one_disk=False, cache_free=1))
    assert "pass through /var/lib/clusterctl" in cache
    assert found(stock(held(*DIFF_IDS[:2]), digests=known(2), free=286 * 1024**2)) == []


def test_another_processor_and_layers_an_engine_cannot_unpack() -> None:
    arm = replace(CONTENT, platform="linux/arm64/v8")
    assert found(stock(), arm) == [
        "acme/image:1 is built for linux/arm64/v8, but the host is linux/amd64"
    ]
    assert found(stock(platform="linux/arm64"), arm) == []
    packed = tuple(replace(layer, media_type="application/x.tar+zstd") for layer in LAYERS)
    zstd = replace(CONTENT, layers=packed)
    assert "which Docker 20.10.24 cannot unpack" in found(stock(), zstd)[0]
    assert found(stock(version="23.0.6"), zstd) == []
    assert found(stock(containerd=True), zstd) == []
