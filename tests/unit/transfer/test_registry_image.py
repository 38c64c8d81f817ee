"""Images out of a registry that breaks off, lies, or has something else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.blob_store import BlobStore, WrongBytes
from clusterctl.transfer.registry_image import RegistryImage
from tests.fakes.image_archives import MadeImage, sha256
from tests.fakes.ports import port_of, reserved
from tests.fakes.registry_server import RegistryServer

Opened = Callable[..., RegistryImage]


def read(found: RegistryImage) -> list[bytes]:
    return [b"".join(found.open(blob)) for blob in found.content.blobs]


def test_an_image_is_what_the_registry_has(
    server: RegistryServer, image: MadeImage, pulled: Opened, store: BlobStore
) -> None:
    found = pulled(server.add("acme/vllm:1", image))
    assert found.content.manifest == image.manifest
    assert found.content.diff_ids == tuple(map(sha256, image.layers))
    assert read(found) == [image.config, *image.layers]
    assert not store.holds(found.content.layers[0]), "it is passed on, and takes no space here"


def test_what_was_downloaded_is_not_asked_for_again(
    server: RegistryServer, image: MadeImage, pulled: Opened, store: BlobStore
) -> None:
    reference = server.add("acme/vllm:1", image)
    found = pulled(reference)
    assert not server.blob_requests(image.layers[1])
    found.download(print)
    pulled(reference).download(print)
    assert read(found) == [image.config, *image.layers]
    assert store.path(found.content.layers[0].digest).read_bytes() == image.layers[0]
    assert len(server.blob_requests(image.layers[0])) == 1
    assert len(server.blob_requests(image.config)) == 1


def test_a_digest_is_pulled_without_asking_again(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    server.add("acme/vllm:1", image)
    pinned = f"{server.address}/acme/vllm@{sha256(image.manifest)}"
    pulled(pinned).download(print)
    server.requests.clear()
    read(pulled(pinned))
    assert not server.requests


def test_a_blob_can_be_read_while_it_arrives(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    found = pulled(server.add("acme/vllm:1", image))
    server.gate = threading.Event()
    stream = found.open(found.content.layers[0], 1000)
    first = next(stream)
    assert image.layers[0][1000:].startswith(first)
    server.gate.set()
    assert first + b"".join(stream) == image.layers[0][1000:]


def test_the_platform_is_chosen_from_an_index(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    arm = MadeImage("acme/vllm:1", image.layers, "arm64")
    reference = server.add("acme/vllm:1", image, arm)
    assert pulled(reference).content.platform == "linux/amd64"
    assert pulled(reference, "linux/arm64").content.platform == "linux/arm64"
    with pytest.raises(RequirementsNotMet, match=r"for linux/s390x; .* linux/amd64, linux/arm64"):
        pulled(reference, "linux/s390x")


def test_a_single_image_for_another_platform(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    with pytest.raises(RequirementsNotMet, match=r"for linux/arm64; it exists for linux/amd64"):
        pulled(server.add("acme/vllm:1", image), "linux/arm64")


@pytest.mark.parametrize("ignore_ranges", [False, True])
def test_a_connection_that_breaks_is_made_again(
    server: RegistryServer, image: MadeImage, pulled: Opened, said: list[str], ignore_ranges: bool
) -> None:
    found = pulled(server.add("acme/vllm:1", image))
    server.cut.extend([1_500_000, 1_900_000])
    server.ignore_ranges = ignore_ranges
    assert b"".join(found.open(found.content.layers[0])) == image.layers[0]
    ranges = [one.range for one in server.blob_requests(image.layers[0])]
    assert len(ranges) == 2 + ignore_ranges
    assert ranges[1].startswith("bytes=1")
    assert any("trying again" in line for line in said)


def test_a_download_goes_on_where_an_earlier_one_stopped(
    server: RegistryServer, image: MadeImage, pulled: Opened, store: BlobStore
) -> None:
    found = pulled(server.add("acme/vllm:1", image))
    part = store.part(sha256(image.layers[0]))
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(image.layers[0][:2_000_000])
    found.download(print)
    assert read(found) == [image.config, *image.layers]
    assert [one.range for one in server.blob_requests(image.layers[0])] == ["bytes=2000000-"]


def test_wrong_bytes_are_not_kept(
    server: RegistryServer, image: MadeImage, pulled: Opened, store: BlobStore
) -> None:
    found = pulled(server.add("acme/vllm:1", image))
    right = server.blobs[sha256(image.layers[0])]
    server.blobs[sha256(image.layers[0])] = right[:-1] + b"x"
    with pytest.raises(WrongBytes):
        found.download(print)
    assert not store.part(sha256(right)).exists()
    server.blobs[sha256(image.layers[0])] = right
    found.download(print)
    assert read(found) == [image.config, *image.layers]


def test_what_a_registry_sends_after_a_blob_is_not_read(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    found = pulled(server.add("acme/vllm:1", image))
    server.blobs[sha256(image.layers[0])] = image.layers[0] + bytes(100_000)
    assert b"".join(found.open(found.content.layers[0])) == image.layers[0]


def test_an_image_that_exists_nowhere(server: RegistryServer, pulled: Opened) -> None:
    with pytest.raises(StepFailed, match=r"acme/none:7 does not exist"):
        pulled(f"{server.address}/acme/none:7")


def test_a_rate_limit_says_when_it_ends(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    reference = server.add("acme/vllm:1", image)
    server.answers.append((429, {"Retry-After": "7200"}))
    with pytest.raises(StepFailed, match=r"rate limit.*120 min") as raised:
        pulled(reference)
    assert "docker login" in str(raised.value.hint)


def test_a_registry_in_trouble_is_asked_again(
    server: RegistryServer, image: MadeImage, pulled: Opened, said: list[str]
) -> None:
    reference = server.add("acme/vllm:1", image)
    server.answers.extend([(503, {})])
    read(pulled(reference))
    assert any("HTTP 503: trying again in" in line for line in said)


def test_nobody_answers(pulled: Opened, paused: list[float]) -> None:
    with reserved() as unused, pytest.raises(StepFailed, match="refuses connections") as raised:
        pulled(f"127.0.0.1:{port_of(unused)}/acme/vllm:1")
    assert "image bundle" in str(raised.value.hint)
    assert paused == [1, 2]


def test_a_name_that_nobody_knows(pulled: Opened) -> None:
    with pytest.raises(StepFailed, match=r"registry\.invalid"):
        pulled("registry.invalid/acme/vllm:1")


def test_what_answers_is_no_registry(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    reference = server.add("acme/vllm:1", image)
    server.manifests["acme/vllm/1"] = b"<html>hello</html>"
    with pytest.raises(StepFailed, match="the manifest is not JSON"):
        pulled(reference)
