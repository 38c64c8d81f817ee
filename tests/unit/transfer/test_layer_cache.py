"""Layers on the operator's machine: what they take up, how they go, and whether they fit at all."""

from __future__ import annotations

import gzip
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import LockHeld, RequirementsNotMet
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import SPARE, BlobStore
from clusterctl.transfer.content import Blob
from clusterctl.transfer.registry_image import RegistryImage
from tests.fakes.image_archives import MadeImage, sha256
from tests.fakes.registry_server import RegistryServer

Usage = namedtuple("Usage", ("total", "used", "free"))
Free = Callable[[int], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    """Says how many bytes are free on this machine's disk."""

    def say(count: int) -> None:
        usage = Usage(1 << 40, (1 << 40) - count, count)
        name = "clusterctl.transfer.blob_store.shutil.disk_usage"
        monkeypatch.setattr(name, lambda _: usage)

    return say


def keep_some(store: BlobStore) -> None:
    store.keep(bytes(1000))
    store.part(sha256(b"another")).write_bytes(bytes(500))
    store.remember("gzip-abc", {"size": 3})


def test_it_is_looked_at_and_cleared(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    model = directory / "models" / "half"
    model.mkdir(parents=True)
    store = BlobStore(directory)
    keep_some(store)
    found = BlobStore(directory).usage()
    assert (found.directory, found.size) == (directory, 1500)
    assert found.free > 0
    del store
    BlobStore(directory).clear()
    assert BlobStore(directory).usage().size == 0
    assert BlobStore(directory).recall("gzip-abc") is None
    assert model.exists()


def test_where_nothing_is_nothing_is_made(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "cache")
    assert store.usage().size == 0
    store.clear()
    assert not store.directory.exists()


def test_what_a_run_uses_stays(tmp_path: Path) -> None:
    running = BlobStore(tmp_path / "cache")
    assert running.recall("anything") is None
    keep_some(running)
    with pytest.raises(LockHeld, match="another clusterctl is using") as raised:
        BlobStore(running.directory).clear()
    assert str(raised.value.hint).endswith(f"fuser -v {running.use}")
    assert running.usage().size == 1500


def test_layers_that_do_not_fit_are_not_begun(
    server: RegistryServer, image: MadeImage, pulled: Callable[..., RegistryImage], free: Free
) -> None:
    found = pulled(server.add("acme/vllm:1", image))
    base, ray = found.content.layers[:2]
    free(SPARE + base.size + ray.size - 1)
    with pytest.raises(RequirementsNotMet, match="image layers do not fit into") as raised:
        found.download(print)
    assert "clusterctl image cache --clear" in str(raised.value.hint)
    assert not server.blob_requests(image.layers[0])
    free(SPARE + base.size + ray.size)
    found.download(print)
    free(0)
    found.download(print)


def test_what_came_before_needs_no_room(store: BlobStore) -> None:
    whole, half = Blob(sha256(b"x" * 9), 9), Blob(sha256(b"y" * 9), 9)
    store.keep(b"x" * 9)
    store.part(half.digest).write_bytes(b"yyyy")
    assert store.missing([whole, half, half]) == 5


def test_a_packed_archive_that_does_not_fit_is_not_unpacked(
    image: MadeImage, store: BlobStore, tmp_path: Path, free: Free
) -> None:
    path = tmp_path / "image.tar.gz"
    path.write_bytes(gzip.compress(image.legacy(), 1))
    free(SPARE + path.stat().st_size - 1)
    with pytest.raises(RequirementsNotMet, match=r"image.tar.gz: .* do not fit into"):
        archive_image(path, store, reference=None, platform=None, say=print)
    assert not store.blobs.exists()
