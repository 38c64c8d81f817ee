"""Plain layers are compressed where that is worth it, once, and nothing else is."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.errors import StepFailed
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.archives.split import clean
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.compressed_image import compressed_image, plain_size
from clusterctl.transfer.content import ImageSource
from tests.fakes.image_archives import MadeImage, sha256, tar_of


@pytest.fixture
def plain(image: MadeImage, tmp_path: Path, store: BlobStore) -> ImageSource:
    path = tmp_path / "image.tar"
    path.write_bytes(image.legacy())
    return archive_image(path, store, reference=None, platform=None, say=print)


def test_layers_are_the_same_once_unpacked(
    plain: ImageSource, image: MadeImage, store: BlobStore
) -> None:
    found = compressed_image(plain, store, say=print)
    assert found.content.config.digest == plain.content.config.digest
    assert found.content.diff_ids == plain.content.diff_ids
    for layer, original in zip(found.content.layers, image.layers, strict=True):
        data = b"".join(found.open(layer))
        assert sha256(data) == layer.digest
        assert len(data) == layer.size < len(original)
        assert layer.media_type.endswith("+gzip")
        assert gzip.decompress(data) == original
        assert store.holds(layer)
    listed = json.loads(found.content.manifest)["layers"]
    assert [one["digest"] for one in listed] == [layer.digest for layer in found.content.layers]
    assert b"".join(found.open(found.content.config)) == image.config


def test_the_second_time_it_is_all_there(
    plain: ImageSource, image: MadeImage, store: BlobStore, tmp_path: Path
) -> None:
    first = compressed_image(plain, store, say=print)
    (tmp_path / "image.tar").write_bytes(b"gone")
    assert compressed_image(plain, store, say=print).content == first.content


def test_without_the_cache_it_comes_out_the_same(plain: ImageSource, tmp_path: Path) -> None:
    made = [
        compressed_image(plain, BlobStore(tmp_path / name), say=print).content
        for name in ("one", "two")
    ]
    assert made[0] == made[1]


def test_only_what_travels_is_compressed(
    plain: ImageSource, image: MadeImage, store: BlobStore
) -> None:
    """What was compressed for an earlier push keeps the digest that engines know it by."""
    last = plain.content.diff_ids[1]
    found = compressed_image(plain, store, say=print, lacking=[last])
    assert [layer.media_type.endswith("gzip") for layer in found.content.layers] == [
        False, True, False,
    ]  # fmt: skip
    assert b"".join(found.open(found.content.layers[0])) == image.layers[0]
    assert plain_size(plain, [last]) == len(image.layers[1])
    whole = compressed_image(plain, store, say=print)
    assert compressed_image(plain, store, say=print, lacking=[]).content == whole.content


def test_compressed_layers_are_left_alone(
    image: MadeImage, tmp_path: Path, store: BlobStore
) -> None:
    packed = gzip.compress(image.layers[0], mtime=0)
    mixed = MadeImage(image.name, image.layers[:2])
    entry = {"Config": "config", "RepoTags": [image.name], "Layers": ["0", "1"]}
    files = {"config": mixed.config, "0": packed, "1": image.layers[1]}
    path = tmp_path / "image.tar"
    path.write_bytes(tar_of({"manifest.json": json.dumps([entry]).encode(), **files}))
    source = archive_image(path, store, reference=None, platform=None, say=print)
    found = compressed_image(source, store, say=print)
    assert found.content.layers[0] == source.content.layers[0]
    assert b"".join(found.open(found.content.layers[0])) == packed
    assert gzip.decompress(b"".join(found.open(found.content.layers[1]))) == image.layers[1]


def test_a_source_that_fails_leaves_nothing(
    plain: ImageSource, store: BlobStore, tmp_path: Path
) -> None:
    (tmp_path / "image.tar").write_bytes(b"changed meanwhile")
    store.blobs.mkdir(parents=True)
    (store.blobs / "save-999999999-abc.part").write_bytes(b"of a killed run")
    with pytest.raises(StepFailed):
        compressed_image(plain, store, say=print)
    assert not list(store.blobs.iterdir())


def test_what_killed_runs_left_is_removed_by_several_at_once(tmp_path: Path) -> None:
    for count in range(2000):
        (tmp_path / f"save-999999999-{count}.part").touch()
    with ThreadPoolExecutor(8) as crew:
        list(crew.map(clean, [str(tmp_path)] * 8))
    assert not list(tmp_path.iterdir())
