"""Programs of hosts that say no more, or say all and go on: an error of the host, never a bug."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from clusterctl.containers import image_stream
from clusterctl.containers.driver import ContainerDriver
from clusterctl.errors import CommandTimedOut
from clusterctl.transfer.content import Blob
from clusterctl.transfer.engine_image import HostImage, overlay_image, save_on_host
from clusterctl.transfer.engine_state import inspect_engine
from clusterctl.transfer.image_receiver import pull
from clusterctl.transport.base import Channel
from tests.fakes.container_engine import FakeChannel, FakeDriver, FakeEngine, image
from tests.fakes.made_image import made_image
from tests.unit.transfer.test_image_pull import Line

NAME = "acme/vllm:1"
BLOB = Blob(f"sha256:{'a' * 64}", 7)


class Stuck(FakeChannel):
    """Ends its output, if not even that is kept back, and does not end."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__()
        self._silent = silent

    def recv(self, size: int) -> bytes:
        if self._silent:
            raise TimeoutError
        return super().recv(size)

    def wait(self, timeout: float | None = None) -> int:
        raise TimeoutError(f"it still runs after {timeout} s")

    def __enter__(self) -> Stuck:
        return self


class StuckDriver(FakeDriver):
    """Its engine has one image."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__("gpu1", FakeEngine(), lambda: None)
        self._engine.images["sha256:i"] = image("sha256:i", NAME)
        self._silent = silent

    def host_open(self, argv: Sequence[str]) -> Channel:
        return Stuck(silent=self._silent)


def layers(driver: ContainerDriver, directory: Path) -> object:
    stock = inspect_engine(driver)
    held = stock.tagged(NAME)
    assert held
    return overlay_image(driver, stock, held, NAME, str(directory), [], lambda _: None)


def saved(driver: ContainerDriver, directory: Path) -> object:
    found = image("sha256:i", NAME)
    return save_on_host(driver, found, NAME, str(directory), say=lambda _: None)


def file(driver: ContainerDriver, directory: Path) -> object:
    held = HostImage(made_image().content, {BLOB.digest: f"{directory}/blob"}, driver)
    return list(held.open(BLOB))


def streamed(driver: ContainerDriver, directory: Path) -> object:
    del directory
    return list(image_stream.saved(driver, image("sha256:i", NAME)))


def pulled(driver: ContainerDriver, directory: Path) -> object:
    del directory
    return pull(driver, Line(), lambda _: None, pause=lambda _: None)


@pytest.mark.parametrize(
    ("work", "silent", "words"),
    [
        (layers, True, "reading the image's layers"),
        (layers, False, "reading the image's layers"),
        (saved, True, "docker save"),
        (saved, False, "docker save"),
        (streamed, True, "docker save"),
        (streamed, False, "docker save"),
        (file, True, "reading .*/blob"),
        (file, False, "reading .*/blob"),
        (pulled, False, "docker pull"),
    ],
)
def test_it_is_named_with_its_host_and_what_to_look_at(
    work: Callable[[ContainerDriver, Path], object], silent: bool, words: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandTimedOut, match=f"{words} hangs") as raised:
        work(StuckDriver(silent=silent), tmp_path)
    assert raised.value.host == "gpu1"
    assert "check the " in str(raised.value.hint)
    assert silent or "it still runs after" in str(raised.value.detail)
