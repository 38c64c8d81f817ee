"""What a partial `docker load` needs of an engine, with images in overlay2 and in containerd."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.distribution.content import Blob, ImageContent
from clusterctl.distribution.engine_stock import settings, take_stock
from clusterctl.distribution.image_load import load_by_stream, load_from_cache
from clusterctl.distribution.image_plan import Standing, Wanted, standing
from clusterctl.distribution.image_proof import image_id, prove
from clusterctl.errors import StepFailed
from tests.contract.containers.conftest import Engine

pytestmark = pytest.mark.dockerd

REFERENCE = "clusterctl-test/layered:1"
PLAIN = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class MadeImage:
    """An image of plain layers in memory, as a source."""

    content: ImageContent
    blobs: dict[str, bytes]

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        yield self.blobs[blob.digest][offset:]

    @property
    def config(self) -> bytes:
        return self.blobs[self.content.config.digest]


def layer(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def made_image(*layers: bytes, word: str = "one") -> MadeImage:
    """No shell, no files but those of `layers`."""
    blobs = {_digest(data): data for data in layers}
    diff_ids = tuple(map(_digest, layers))
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [f"WORD={word}"], "Labels": {"made": "here"}},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": [{"created_by": "test"} for _ in layers],
        }
    ).encode()
    blobs[_digest(config)] = config
    described = Blob(_digest(config), len(config), "application/vnd.oci.image.config.v1+json")
    listed = tuple(Blob(_digest(data), len(data), PLAIN) for data in layers)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _described(described),
            "layers": [_described(blob) for blob in listed],
        }
    ).encode()
    content = ImageContent(
        REFERENCE, manifest, "application/vnd.oci.image.manifest.v1+json", described, listed,
        diff_ids, "linux/amd64",
    )  # fmt: skip
    return MadeImage(content, blobs)


def _described(blob: Blob) -> dict[str, object]:
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def wanted(image: MadeImage) -> Wanted:
    return Wanted(
        REFERENCE,
        image.content.diff_ids,
        frozenset({image.content.config.digest}),
        settings(json.loads(image.config)["config"]),
    )


@pytest.fixture(params=["engine", "newer_engine"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


BASE = layer("base", os.urandom(3_000_000))
FIRST = made_image(BASE, layer("top", b"first"))
SECOND = made_image(BASE, layer("top", b"second"), word="two")


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """The blobs of both images as files, by digest."""
    paths = {}
    for digest, data in {**FIRST.blobs, **SECOND.blobs}.items():
        path = tmp_path / digest.removeprefix("sha256:")
        path.write_bytes(data)
        paths[digest] = str(path)
    return paths


@pytest.fixture
def with_first(engine: Engine) -> Iterator[str]:
    """The first image is there, and nothing else; its ID."""
    for identifier in set(engine.docker("images", "-q", "--no-trunc").split()):
        engine.docker("rmi", "-f", identifier)
    driver, content = engine.driver(), FIRST.content
    load_by_stream(driver, content, content.layers, FIRST, lambda _: None)
    identifier = image_id(content, containerd=take_stock(driver).containerd)
    driver.tag(identifier, REFERENCE)
    yield identifier
    for found in set(engine.docker("images", "-q", "--no-trunc").split()):
        engine.docker("rmi", "-f", found)


def test_an_image_streamed_whole_is_proved_by_a_container(engine: Engine, with_first: str) -> None:
    prove(engine.driver(), FIRST.content, with_first)
    stock = take_stock(engine.driver())
    assert standing(stock, wanted(FIRST)) is Standing.PRESENT
    assert standing(stock, wanted(SECOND)) is Standing.OTHER
    assert stock.containerd is (engine.name == "gpu3")
    assert stock.python == "python3"
    assert stock.free > 0
    assert stock.platform == "linux/amd64"


def test_only_the_layer_that_lacks_is_loaded(
    engine: Engine, with_first: str, cache: dict[str, str]
) -> None:
    driver, content = engine.driver(), SECOND.content
    assert take_stock(driver).common(content.diff_ids) == 1
    top = content.layers[1].digest
    load_from_cache(driver, content, SECOND.config, {top: cache[top]})
    identifier = image_id(content, containerd=take_stock(driver).containerd)
    prove(driver, content, identifier)
    driver.tag(identifier, REFERENCE)
    assert standing(take_stock(driver), wanted(SECOND)) is Standing.PRESENT
    assert FIRST.content.diff_ids != SECOND.content.diff_ids


def test_the_same_by_a_stream_over_ssh(engine: Engine, with_first: str) -> None:
    driver, content = engine.driver(), SECOND.content
    load_by_stream(driver, content, content.layers[1:], SECOND, lambda _: None)
    prove(driver, content, image_id(content, containerd=take_stock(driver).containerd))


def test_a_layer_that_is_not_what_it_should_be_is_no_image(
    engine: Engine, with_first: str, cache: dict[str, str]
) -> None:
    """Loaded without a complaint or not: it is never taken for the image."""
    driver, content = engine.driver(), SECOND.content
    top = content.layers[1].digest
    with pytest.raises(StepFailed):  # noqa: PT012  (engines differ in when they notice)
        load_from_cache(
            driver, content, SECOND.config, {top: cache[FIRST.content.layers[1].digest]}
        )
        prove(driver, content, image_id(content, containerd=take_stock(driver).containerd))


def test_what_a_host_had_by_another_name_gets_the_name(engine: Engine, with_first: str) -> None:
    driver = engine.driver()
    driver.tag(with_first, "other/name:1")
    engine.docker("rmi", REFERENCE)
    assert standing(take_stock(driver), wanted(FIRST)) is Standing.NAMELESS
