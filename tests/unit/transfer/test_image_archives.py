"""Images in archives of every form: the same content, byte for byte, whatever holds it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import ImageSource
from tests.fakes.image_archives import (
    MadeImage,
    layer_tar,
    layout_files,
    nested_layout,
    sha256,
    tar_of,
)

Opened = Callable[..., ImageSource]


@pytest.fixture
def opened(tmp_path: Path, store: BlobStore) -> Opened:
    """Opens bytes as an archive, or what a path holds."""

    def open_it(
        what: bytes | Path, reference: str | None = None, platform: str | None = None
    ) -> ImageSource:
        path = what if isinstance(what, Path) else tmp_path / "image.tar"
        if isinstance(what, bytes):
            path.write_bytes(what)
        return archive_image(path, store, reference=reference, platform=platform, say=print)

    return open_it


def insist_same(found: ImageSource, image: MadeImage) -> None:
    assert found.content.platform == "linux/amd64"
    assert found.content.reference in (image.name, f"docker.io/{image.name}")
    assert found.content.diff_ids == tuple(sha256(layer) for layer in image.layers)
    held = [b"".join(found.open(blob)) for blob in found.content.blobs]
    assert held == [image.config, *image.layers]
    for blob in found.content.blobs:
        assert blob.digest == sha256(b"".join(found.open(blob)))
        assert b"".join(found.open(blob, 5)) == b"".join(found.open(blob))[5:]


def test_what_docker_20_saves(opened: Opened, image: MadeImage) -> None:
    insist_same(opened(image.legacy()), image)


def test_the_manifest_made_for_it_is_always_the_same(
    opened: Opened, image: MadeImage, tmp_path: Path
) -> None:
    first = opened(image.legacy()).content.manifest
    (tmp_path / "other.tar").write_bytes(image.legacy())
    assert opened(tmp_path / "other.tar").content.manifest == first


@pytest.mark.parametrize("reference", [None, "acme/vllm:1", "docker.io/acme/vllm:1"])
def test_an_oci_layout_tar(opened: Opened, image: MadeImage, reference: str | None) -> None:
    found = opened(image.layout(), reference)
    insist_same(found, image)
    assert found.content.manifest == image.manifest


def test_an_oci_layout_directory(opened: Opened, image: MadeImage, tmp_path: Path) -> None:
    insist_same(opened(image.layout_in(tmp_path / "layout")), image)


def test_what_the_containerd_store_saves(opened: Opened, image: MadeImage) -> None:
    """Images for other platforms are named, and not there."""
    other = MadeImage("acme/vllm:1", image.layers, "arm64")
    insist_same(opened(nested_layout("acme/vllm:1", image, missing=(other,))), image)


def test_layers_within_the_tar_are_not_copied(
    opened: Opened, image: MadeImage, store: BlobStore
) -> None:
    found = opened(image.legacy())
    insist_same(found, image)
    assert not store.blobs.exists()


@pytest.mark.parametrize("compress", [gzip.compress, lambda data: zstd(data)])
def test_a_compressed_archive_is_unpacked_once(
    opened: Opened,
    image: MadeImage,
    store: BlobStore,
    tmp_path: Path,
    compress: Callable[[bytes], bytes],
) -> None:
    path = tmp_path / "image.tar.xy"
    path.write_bytes(compress(image.legacy()))
    found = opened(path)
    insist_same(found, image)
    unpacked = store.path(found.content.layers[0].digest)
    written = unpacked.stat().st_mtime_ns
    insist_same(opened(path), image)
    assert unpacked.stat().st_mtime_ns == written


def zstd(data: bytes) -> bytes:
    if not shutil.which("zstd"):
        pytest.skip("zstd is not installed")
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


def test_compressed_layers_stay_as_they_are(opened: Opened, image: MadeImage) -> None:
    """As podman and bazel write docker archives."""
    packed = [gzip.compress(layer, mtime=0) for layer in image.layers[:2]]
    entry = {"Config": "config.json", "RepoTags": [image.name], "Layers": ["0.tgz", "1.tgz"]}
    short = MadeImage(image.name, image.layers[:2])
    files = {
        "manifest.json": json.dumps([entry]).encode(),
        "config.json": short.config,
        "0.tgz": packed[0],
        "1.tgz": packed[1],
    }
    found = opened(tar_of(files)).content
    assert [layer.digest for layer in found.layers] == [sha256(layer) for layer in packed]
    assert found.layers[0].media_type.endswith("tar+gzip")
    assert found.diff_ids == tuple(sha256(layer) for layer in short.layers)


def test_one_of_several_is_chosen_by_name(opened: Opened, image: MadeImage) -> None:
    other = MadeImage("acme/other:2", (layer_tar("other", 10),))
    both = tar_of(layout_files(image, other))
    insist_same(opened(both, "acme/vllm:1"), image)
    with pytest.raises(RequirementsNotMet, match="2 images") as raised:
        opened(both)
    assert "acme/other:2" in str(raised.value.hint)
    with pytest.raises(RequirementsNotMet, match=r"acme/none:1 is not in it; it has .*vllm:1"):
        opened(both, "acme/none:1")


def test_another_platform_says_which_there_are(opened: Opened, image: MadeImage) -> None:
    arm = MadeImage(image.name, image.layers, "arm64")
    for form in (image.legacy(), image.layout()):
        with pytest.raises(RequirementsNotMet, match="for linux/arm64; it exists for linux/amd64"):
            opened(form, platform="linux/arm64")
    both = nested_layout(image.name, image, arm)
    assert opened(both, platform="linux/arm64").content.platform == "linux/arm64"
    with pytest.raises(RequirementsNotMet, match="several platforms: linux/amd64, linux/arm64"):
        opened(both)


@pytest.mark.parametrize("form", ["legacy", "layout"])
def test_a_corrupt_layer_is_named(opened: Opened, image: MadeImage, form: str) -> None:
    data = bytearray(getattr(image, form)())
    at = data.index(image.layers[1])
    data[at + 600] ^= 1
    found = opened(bytes(data))
    assert b"".join(found.open(found.content.layers[0])) == image.layers[0]
    with pytest.raises(StepFailed, match=r"image\.tar is corrupt.*" + sha256(image.layers[1])):
        b"".join(found.open(found.content.layers[1]))


def test_a_corrupt_manifest_is_named(opened: Opened, image: MadeImage) -> None:
    data = image.layout().replace(b'"schemaVersion": 2,\n', b'"schemaVersion": 3,\n')
    with pytest.raises(RequirementsNotMet, match=sha256(image.manifest)[7:]):
        opened(data)


@pytest.mark.parametrize("form", ["legacy", "layout"])
def test_a_truncated_archive_says_where(opened: Opened, image: MadeImage, form: str) -> None:
    data = getattr(image, form)()
    at = data.index(image.layers[0])
    with pytest.raises(RequirementsNotMet, match=r"image\.tar.*trunc"):
        opened(data[: at + 5000])


@pytest.mark.parametrize("compress", [gzip.compress, lambda data: zstd(data)])
def test_a_truncated_compressed_archive(
    opened: Opened, image: MadeImage, compress: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(RequirementsNotMet, match=r"image\.tar"):
        opened(compress(image.legacy())[:-5000])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a complete image archive"),
        (b"not a tar" * 1000, "not a complete image archive"),
        (tar_of({"etc/passwd": b"root"}), "neither an index.json"),
        (tar_of({"index.json": b"[]"}), "not a JSON object"),
        (tar_of({"manifest.json": b"{"}), "not what `docker save` writes"),
        (tar_of({"manifest.json": b'[{"Config": "gone", "Layers": []}]'}), "gone is missing"),
        (b"BZh9" + b"x" * 100, "compressed with a method"),
    ],
)
def test_what_is_no_image(opened: Opened, content: bytes, words: str) -> None:
    with pytest.raises(RequirementsNotMet, match=words) as raised:
        opened(content)
    assert "image.tar" in raised.value.summary
    assert raised.value.hint


def test_no_such_file(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(RequirementsNotMet, match="No such file"):
        opened(tmp_path / "none.tar")


def test_a_file_that_changes_while_it_is_sent(
    opened: Opened, image: MadeImage, tmp_path: Path
) -> None:
    found = opened(image.legacy())
    stream = found.open(found.content.layers[0])
    next(stream)
    with (tmp_path / "image.tar").open("ab") as file:
        file.write(b"more")
    with pytest.raises(StepFailed, match=r"image\.tar changed while it was read"):
        list(stream)
    with pytest.raises(StepFailed, match="changed"):
        next(found.open(found.content.layers[0]))


def test_bytes_are_hashed_once(opened: Opened, image: MadeImage, tmp_path: Path) -> None:
    """The second time wrong bytes behind the same size and time pass: nobody looked."""
    found = opened(image.legacy())
    insist_same(found, image)
    path = tmp_path / "image.tar"
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[data.index(image.layers[1]) + 600] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = opened(path)
    assert b"".join(again.open(again.content.layers[1])) != image.layers[1]
