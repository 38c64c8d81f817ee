"""What a partial `docker load` needs of an engine, with images in overlay2 and in containerd."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import StepFailed
from clusterctl.transfer.engine_state import WantedImage, inspect_engine, same_image, settings
from clusterctl.transfer.image_receiver import image_id, load_from_cache, prove
from tests.contract.containers.dockerd import Engine
from tests.contract.containers.newer_engine import WITH_NEWER_ENGINE
from tests.fakes.made_image import REFERENCE, MadeImage, layer, made_image

pytestmark = [pytest.mark.dockerd, WITH_NEWER_ENGINE]


def wanted(image: MadeImage) -> WantedImage:
    return WantedImage(
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
    engine.clear()
    driver, content = engine.driver(), FIRST.content
    engine.docker("load", stdin=FIRST.archive())
    identifier = image_id(content, containerd=inspect_engine(driver).containerd)
    driver.tag(identifier, REFERENCE)
    yield identifier
    engine.clear()


def test_an_image_loaded_whole_is_proved_by_a_container(engine: Engine, with_first: str) -> None:
    prove(engine.driver(), FIRST.content, with_first)
    stock = inspect_engine(engine.driver())
    assert stock.tagged(REFERENCE) == same_image(stock, wanted(FIRST))
    assert same_image(stock, wanted(SECOND)) is None
    assert stock.containerd is (engine.name == "gpu3")
    assert stock.python == "python3"
    assert stock.free > 0
    assert stock.platform == "linux/amd64"


def test_only_the_layer_that_lacks_is_loaded(
    engine: Engine, with_first: str, cache: dict[str, str]
) -> None:
    driver, content = engine.driver(), SECOND.content
    assert inspect_engine(driver).common(content.diff_ids) == 1
    top = content.layers[1].digest
    load_from_cache(driver, content, SECOND.config, {top: cache[top]})
    identifier = image_id(content, containerd=inspect_engine(driver).containerd)
    prove(driver, content, identifier)
    driver.tag(identifier, REFERENCE)
    assert same_image(inspect_engine(driver), wanted(SECOND)) is not None
    assert FIRST.content.diff_ids != SECOND.content.diff_ids


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
        prove(driver, content, image_id(content, containerd=inspect_engine(driver).containerd))


def test_an_image_is_recognized_by_another_name(engine: Engine, with_first: str) -> None:
    driver = engine.driver()
    driver.tag(with_first, "other/name:1")
    engine.docker("rmi", REFERENCE)
    here = same_image(inspect_engine(driver), wanted(FIRST))
    assert here is not None
    assert here.tags == ("other/name:1",)
