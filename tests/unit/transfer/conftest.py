"""A store of blobs, images and registries made for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.registry_image import RegistryImage, registry_image
from tests.fakes.image_archives import MadeImage, layer_tar
from tests.fakes.registry_server import RegistryServer, registry_server


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache")


@pytest.fixture
def image() -> MadeImage:
    """Its last layer is its first once more; one is larger than a chunk."""
    base = layer_tar("base", 3_000_000)
    return MadeImage("acme/vllm:1", (base, layer_tar("ray", 70_000), base))


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
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
def pulled(
    store: BlobStore, home: Path, said: list[str], paused: list[float]
) -> Callable[..., RegistryImage]:
    """Opens images of registries."""

    def open_it(
        reference: str,
        platform: str = "linux/amd64",
        ask: Callable[[str], str | None] | None = None,
        insecure: Collection[str] = (),
        docker: Path = Path("/none"),
    ) -> RegistryImage:
        return registry_image(
            reference,
            platform,
            store,
            say=said.append,
            ask=ask or (lambda _: None),
            insecure=insecure,
            pause=paused.append,
            docker=docker,
        )

    return open_it
