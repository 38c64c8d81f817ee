"""Bundles in real engines: `docker load` takes them, old and new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.bundle import write_bundle
from clusterctl.transfer.content import ImageSource
from tests.contract.containers.dockerd import Engine
from tests.contract.containers.newer_engine import WITH_NEWER_ENGINE
from tests.fakes.image_archives import MadeImage, layer_tar, sha256

pytestmark = [pytest.mark.dockerd, WITH_NEWER_ENGINE]

NAMES = ("clusterctl-test/bundled:1", "registry.example:5000/clusterctl-test/bundled:2")


@pytest.fixture(params=["engine", "newer_engine"])
def running(request: pytest.FixtureRequest) -> Engine:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Engine)
    for name in NAMES:
        found.driver().remove_image(name)
    return found


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache")


@pytest.fixture(params=[MadeImage.legacy, MadeImage.packed])
def images(request: pytest.FixtureRequest, tmp_path: Path, store: BlobStore) -> list[ImageSource]:
    base = layer_tar("base", 200_000)
    found: list[ImageSource] = []
    for name in NAMES:
        path = tmp_path / f"{len(found)}.tar"
        path.write_bytes(request.param(MadeImage(name, (base, layer_tar(name, 5000)))))
        found.append(archive_image(path, store, reference=None, platform=None, say=print))
    return found


def test_docker_loads_a_bundle(running: Engine, images: list[ImageSource], tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle(images, path, say=print)
    running.docker("load", stdin=path.read_bytes())
    for image, name in zip(images, NAMES, strict=True):
        (inspected,) = json.loads(running.docker("image", "inspect", name))
        assert inspected["RootFS"]["Layers"] == list(image.content.diff_ids)
        ids = {image.content.config.digest, sha256(image.content.manifest)}
        assert inspected["Id"] in ids
        # Not only listed: its layers are unpacked.
        running.docker("rm", running.docker("create", name))


def test_what_docker_saves_of_it_is_the_same_image(
    running: Engine, images: list[ImageSource], store: BlobStore, tmp_path: Path
) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle(images, path, say=print)
    running.docker("load", stdin=path.read_bytes())
    saved = tmp_path / "saved.tar"
    running.docker("save", "-o", str(saved), *NAMES)
    for image, name in zip(images, NAMES, strict=True):
        again = archive_image(saved, store, reference=name, platform="linux/amd64", say=print)
        assert again.content.config.digest == image.content.config.digest
        assert again.content.diff_ids == image.content.diff_ids
