"""Images out of Docker's own registry, and through a bundle into real engines."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.registry_image import registry_image
from tests.fakes.docker_registry import Registry, docker_registry
from tests.fakes.image_archives import MadeImage, layer_tar, sha256

pytestmark = pytest.mark.skipif(
    shutil.which("docker-registry") is None, reason="docker-registry is not installed"
)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def private_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with docker_registry(tmp_path_factory.mktemp("registry"), ("ann", "s3cret")) as running:
        yield running


@pytest.fixture
def image() -> MadeImage:
    return MadeImage("acme/vllm:1", (layer_tar("base", 2_500_000), layer_tar("ray", 5000)))


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".docker").mkdir(parents=True)
    return tmp_path / "home"


def bundle(home: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = {
        "HOME": str(home),
        "PATH": path + os.environ["PATH"],
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    argv = [sys.executable, "-m", "clusterctl", "image", "bundle", *words]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=120)


def test_an_image_comes_byte_for_byte(
    registry: Registry, image: MadeImage, store: BlobStore
) -> None:
    found = registry_image(registry.push(image), "linux/amd64", store, say=print)
    assert found.content.manifest == image.manifest
    found.download(print)
    held = [b"".join(found.open(blob)) for blob in found.content.blobs]
    assert held == [image.config, *image.layers]


def test_a_part_is_asked_for_where_the_rest_is_there(
    registry: Registry, image: MadeImage, store: BlobStore
) -> None:
    found = registry_image(registry.push(image), "linux/amd64", store, say=print)
    part = store.part(sha256(image.layers[0]))
    part.write_bytes(image.layers[0][:1_000_000])
    assert b"".join(found.open(found.content.layers[0], 7)) == image.layers[0][7:]
    found.download(print)
    assert store.path(sha256(image.layers[0])).read_bytes() == image.layers[0]


def test_what_it_has_not(registry: Registry, image: MadeImage, store: BlobStore) -> None:
    registry.push(image)
    for name in ("acme/vllm:none", "acme/nobody:1"):
        with pytest.raises(StepFailed, match="does not exist"):
            registry_image(f"{registry.address}/{name}", "linux/amd64", store, say=print)


def test_a_private_registry_wants_a_login(
    private_registry: Registry, image: MadeImage, home: Path, tmp_path: Path
) -> None:
    reference = private_registry.push(image)
    output = str(tmp_path / "bundle.tar")
    refused = bundle(home, reference, "-o", output)
    assert refused.returncode == RequirementsNotMet.exit_code
    assert f"docker login {private_registry.address}" in refused.stderr
    assert not Path(output).exists()
    auth = base64.b64encode(b"ann:s3cret").decode()
    config = {"auths": {private_registry.address: {"auth": auth}}}
    (home / ".docker" / "config.json").write_text(json.dumps(config))
    done = bundle(home, reference, "-o", output)
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert f"image push {reference} --from {output}" in done.stdout


def test_a_credential_helper_is_asked(
    private_registry: Registry, image: MadeImage, home: Path, tmp_path: Path
) -> None:
    """As `docker login` leaves it on a desktop."""
    programs = tmp_path / "programs"
    programs.mkdir()
    helper = programs / "docker-credential-test"
    helper.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = get ] && [ "$(cat)" = {private_registry.address} ] || exit 1\n'
        'echo \'{"Username": "ann", "Secret": "s3cret"}\'\n'
    )
    helper.chmod(0o755)
    (home / ".docker" / "config.json").write_text(json.dumps({"credsStore": "test"}))
    reference = private_registry.push(image)
    output = tmp_path / "bundle.tar"
    done = bundle(home, reference, "-o", str(output), path=f"{programs}:")
    assert done.returncode == 0, done.stderr


def test_a_bundle_is_the_same_the_second_time_and_moves_nothing(
    registry: Registry, image: MadeImage, home: Path, tmp_path: Path
) -> None:
    reference = registry.push(image)
    outputs = [tmp_path / "one.tar", tmp_path / "two.tar"]
    for output in outputs:
        done = bundle(home, reference, "-o", str(output), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["size"] == output.stat().st_size
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_every_image_that_is_not_there_is_named_at_once(
    registry: Registry, home: Path, tmp_path: Path
) -> None:
    names = [f"{registry.address}/acme/{name}:1" for name in ("one", "two")]
    done = bundle(home, *names, "-o", str(tmp_path / "bundle.tar"))
    assert done.returncode == StepFailed.exit_code
    assert all(name.partition("/")[2] in done.stderr for name in names)
    assert "Traceback" not in done.stderr


def test_words_that_make_no_sense(home: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "bundle.tar")
    done = bundle(home, "Acme/VLLM", "acme/vllm:", "-o", output, "--platform", "arm64")
    assert done.returncode == 2
    for word in ("Acme/VLLM", "acme/vllm:", "arm64"):
        assert f"'{word}' is no" in done.stderr
