"""Bundles: the same bytes each time, whole or not there."""

from __future__ import annotations

import fcntl
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.bundle import write_bundle
from clusterctl.transfer.content import Blob, ImageContent, ImageSource
from tests.fakes.image_archives import MadeImage, layer_tar

Opened = Callable[..., ImageSource]


@pytest.fixture
def opened(tmp_path: Path, store: BlobStore) -> Opened:
    def open_it(image: MadeImage, path: Path | None = None) -> ImageSource:
        if path is None:
            path = tmp_path / f"{image.name.replace('/', '-')}.source"
            path.write_bytes(image.layout())
        return archive_image(path, store, reference=image.name, platform=None, say=print)

    return open_it


@pytest.fixture
def other() -> MadeImage:
    return MadeImage("registry.example:5000/other:2", (layer_tar("other", 100),))


class Lying:
    """A source that sends other bytes than it promised."""

    def __init__(self, image: ImageSource) -> None:
        self.content: ImageContent = image.content
        self._image = image

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        data = b"".join(self._image.open(blob, offset))
        yield data[:-1] + bytes([data[-1] ^ 1])


def test_a_bundle_is_read_again(
    opened: Opened, image: MadeImage, other: MadeImage, tmp_path: Path
) -> None:
    path = tmp_path / "bundle.tar"
    size = write_bundle([opened(image), opened(other)], path, say=print)
    assert size == path.stat().st_size
    for made in (image, other):
        found = opened(made, path)
        assert found.content.manifest == made.manifest
        assert b"".join(found.open(found.content.config)) == made.config
        held = [b"".join(found.open(layer)) for layer in found.content.layers]
        assert held == list(made.layers)


def test_the_same_images_make_the_same_bytes(
    opened: Opened, image: MadeImage, tmp_path: Path
) -> None:
    paths = [tmp_path / "one.tar", tmp_path / "two.tar"]
    for path in paths:
        write_bundle([opened(image)], path, say=print)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_it_is_a_docker_archive_too(opened: Opened, image: MadeImage, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    write_bundle([opened(image)], path, say=print)
    with tarfile.open(path) as tar:
        names = tar.getnames()
        manifest = tar.extractfile("manifest.json")
        assert manifest
        (entry,) = json.load(manifest)
    assert entry["RepoTags"] == ["acme/vllm:1"]
    assert {entry["Config"], *entry["Layers"]} <= set(names)
    assert len(names) == len(set(names)), "a layer that is there twice is written once"


def test_wrong_bytes_leave_no_file(opened: Opened, image: MadeImage, tmp_path: Path) -> None:
    path = tmp_path / "out" / "bundle.tar"
    path.parent.mkdir()
    path.write_bytes(b"the bundle of yesterday")
    with pytest.raises(StepFailed, match="does not match the bytes that were read"):
        write_bundle([Lying(opened(image))], path, say=print)
    assert path.read_bytes() == b"the bundle of yesterday"
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_that_is_not_there(opened: Opened, image: MadeImage, tmp_path: Path) -> None:
    with pytest.raises(RequirementsNotMet, match="No such file"):
        write_bundle([opened(image)], tmp_path / "none" / "bundle.tar", say=print)


def test_two_at_once_do_not_mix(opened: Opened, image: MadeImage, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar"
    with (tmp_path / "bundle.tar.part").open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(StepFailed, match="another process"):
            write_bundle([opened(image)], path, say=print)
    write_bundle([opened(image)], path, say=print)
    assert path.exists()
