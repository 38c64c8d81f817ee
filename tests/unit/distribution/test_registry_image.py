"""Images out of a registry that redirects, breaks off, asks who we are, or refuses."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.distribution.blob_store import BlobStore, WrongBytes
from clusterctl.distribution.registry_image import RegistryImage, registry_image
from clusterctl.errors import RequirementsNotMet, StepFailed
from tests.fakes.image_archives import MadeImage, layer_tar, sha256
from tests.fakes.registry_server import RegistryServer, registry_server

Opened = Callable[..., RegistryImage]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def image() -> MadeImage:
    return MadeImage("acme/vllm:1", (layer_tar("base", 3_000_000), layer_tar("ray", 70_000)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No login of this machine's user."""
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def paused() -> list[float]:
    """Seconds that a client waited before it tried again; nobody waits here."""
    return []


@pytest.fixture
def opened(store: BlobStore, said: list[str], paused: list[float]) -> Opened:
    def open_it(
        reference: str,
        platform: str = "linux/amd64",
        ask: Callable[[str], str | None] | None = None,
    ) -> RegistryImage:
        return registry_image(
            reference,
            platform,
            store,
            say=said.append,
            ask=ask or (lambda _: None),
            pause=paused.append,
        )

    return open_it


def log_in(home: Path, registry: str, user: str, password: str) -> None:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


def read(found: RegistryImage) -> list[bytes]:
    return [b"".join(found.open(blob)) for blob in found.content.blobs]


def test_an_image_is_what_the_registry_has(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    found = opened(server.add("acme/vllm:1", image))
    assert found.content.manifest == image.manifest
    assert found.content.diff_ids == tuple(map(sha256, image.layers))
    assert read(found) == [image.config, *image.layers]
    place = found.location(found.content.layers[0])
    assert place
    assert place.path.read_bytes() == image.layers[0]


def test_only_what_is_asked_for_is_fetched_and_only_once(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    reference = server.add("acme/vllm:1", image)
    found = opened(reference)
    assert not server.blob_requests(image.layers[1])
    read(found)
    read(opened(reference))
    assert len(server.blob_requests(image.layers[0])) == 1
    assert len(server.blob_requests(image.config)) == 1


def test_a_digest_is_pulled_without_asking_again(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    server.add("acme/vllm:1", image)
    pinned = f"{server.address}/acme/vllm@{sha256(image.manifest)}"
    read(opened(pinned))
    server.requests.clear()
    read(opened(pinned))
    assert not server.requests


def test_a_blob_can_be_read_while_it_arrives(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    found = opened(server.add("acme/vllm:1", image))
    server.gate = threading.Event()
    stream = found.open(found.content.layers[0])
    first = next(stream)
    assert first == image.layers[0][: len(first)]
    assert found.location(found.content.layers[0]) is None
    server.gate.set()
    assert first + b"".join(stream) == image.layers[0]


def test_the_platform_is_chosen_from_an_index(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    arm = MadeImage("acme/vllm:1", image.layers, "arm64")
    reference = server.add("acme/vllm:1", image, arm)
    assert opened(reference).content.platform == "linux/amd64"
    assert opened(reference, "linux/arm64").content.platform == "linux/arm64"
    with pytest.raises(RequirementsNotMet, match=r"for linux/s390x; .* linux/amd64, linux/arm64"):
        opened(reference, "linux/s390x")


def test_a_single_image_for_another_platform(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    with pytest.raises(RequirementsNotMet, match=r"for linux/arm64; it exists for linux/amd64"):
        opened(server.add("acme/vllm:1", image), "linux/arm64")


@pytest.mark.parametrize("ignore_ranges", [False, True])
def test_a_connection_that_breaks_is_made_again(
    server: RegistryServer, image: MadeImage, opened: Opened, said: list[str], ignore_ranges: bool
) -> None:
    found = opened(server.add("acme/vllm:1", image))
    server.cut.extend([1_500_000, 1_900_000])
    server.ignore_ranges = ignore_ranges
    assert b"".join(found.open(found.content.layers[0])) == image.layers[0]
    ranges = [one.range for one in server.blob_requests(image.layers[0])]
    assert len(ranges) == 2 + ignore_ranges
    assert ranges[1].startswith("bytes=1")
    assert any("trying again" in line for line in said)


def test_a_download_goes_on_where_another_process_left_it(
    server: RegistryServer, image: MadeImage, opened: Opened, store: BlobStore
) -> None:
    found = opened(server.add("acme/vllm:1", image))
    part = store.part(sha256(image.layers[0]))
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(image.layers[0][:2_000_000])
    assert b"".join(found.open(found.content.layers[0])) == image.layers[0]
    assert [one.range for one in server.blob_requests(image.layers[0])] == ["bytes=2000000-"]


def test_wrong_bytes_are_not_kept(
    server: RegistryServer, image: MadeImage, opened: Opened, store: BlobStore
) -> None:
    found = opened(server.add("acme/vllm:1", image))
    right = server.blobs[sha256(image.layers[0])]
    server.blobs[sha256(image.layers[0])] = right[:-1] + b"x"
    got: list[bytes] = []
    with pytest.raises(WrongBytes):
        got.extend(found.open(found.content.layers[0]))
    assert len(b"".join(got)) < len(right)
    assert not store.part(sha256(right)).exists()
    server.blobs[sha256(image.layers[0])] = right
    assert b"".join(found.open(found.content.layers[0])) == right


def test_tokens_are_fetched_and_renewed(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    server.demand, server.token_life = "token", 2
    assert read(opened(server.add("acme/vllm:1", image))) == [image.config, *image.layers]
    assert server.tokens == 2


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_login_of_docker_is_used(
    server: RegistryServer, image: MadeImage, opened: Opened, home: Path, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "a:secret")
    log_in(home, server.address, "ann", "a:secret")
    read(opened(server.add("acme/vllm:1", image)))


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_person_is_asked_where_no_file_has_a_login(
    server: RegistryServer, image: MadeImage, opened: Opened, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "secret")
    reference = server.add("acme/vllm:1", image)
    read(opened(reference, ask=lambda text: "secret" if "password" in text else "ann"))


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_missing_login_says_how_to_give_it(
    server: RegistryServer, image: MadeImage, opened: Opened, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "secret")
    with pytest.raises(RequirementsNotMet, match="asks for a login") as raised:
        opened(server.add("acme/vllm:1", image))
    assert f"docker login {server.address}" in str(raised.value.hint)


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_wrong_login_is_said_without_its_password(
    server: RegistryServer, image: MadeImage, opened: Opened, home: Path, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "secret")
    log_in(home, server.address, "bob", "hunter2")
    with pytest.raises(RequirementsNotMet, match="to the user bob") as raised:
        opened(server.add("acme/vllm:1", image))
    error = raised.value
    assert "hunter2" not in f"{error.summary}{error.hint}{error.detail}"


def test_another_host_is_not_told_the_login(
    server: RegistryServer, image: MadeImage, opened: Opened, home: Path
) -> None:
    with registry_server() as other:
        other.add("acme/vllm:1", image)
        server.demand, server.login = "basic", ("ann", "secret")
        log_in(home, server.address, "ann", "secret")
        server.redirect = f"http://localhost:{other.port}"
        read(opened(server.add("acme/vllm:1", image)))
        assert len(other.requests) == 3
        assert not any(one.authorization for one in other.requests)


def test_an_image_that_exists_nowhere(server: RegistryServer, opened: Opened) -> None:
    with pytest.raises(StepFailed, match=r"acme/none:7 does not exist"):
        opened(f"{server.address}/acme/none:7")


def test_a_rate_limit_says_when_it_ends(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    reference = server.add("acme/vllm:1", image)
    server.answers.append((429, {"Retry-After": "7200"}))
    with pytest.raises(StepFailed, match=r"rate limit.*120 min") as raised:
        opened(reference)
    assert "docker login" in str(raised.value.hint)


def test_a_registry_in_trouble_is_asked_again(
    server: RegistryServer, image: MadeImage, opened: Opened, said: list[str]
) -> None:
    reference = server.add("acme/vllm:1", image)
    server.answers.extend([(503, {})])
    read(opened(reference))
    assert any("HTTP 503: trying again in" in line for line in said)


def test_nobody_answers(opened: Opened, paused: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(StepFailed, match="connection refused") as raised:
        opened(f"127.0.0.1:{port}/acme/vllm:1")
    assert "image bundle" in str(raised.value.hint)
    assert paused == [1, 2]


def test_a_name_that_nobody_knows(opened: Opened) -> None:
    with pytest.raises(StepFailed, match=r"registry\.invalid"):
        opened("registry.invalid/acme/vllm:1")


def test_what_answers_is_no_registry(
    server: RegistryServer, image: MadeImage, opened: Opened
) -> None:
    reference = server.add("acme/vllm:1", image)
    server.manifests["acme/vllm/1"] = b"<html>hello</html>"
    with pytest.raises(StepFailed, match="the manifest is not JSON"):
        opened(reference)
