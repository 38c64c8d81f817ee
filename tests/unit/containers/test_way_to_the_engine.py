"""What is said when the command that leads to the engine hangs up before a word came."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.containers.driver import EngineUnavailable
from clusterctl.errors import ConnectionFailed
from clusterctl.inventory.model import Host
from clusterctl.transport.base import CommandResult
from tests.fakes.transport import FakeChannel, FakeTransport


class Lingering(FakeChannel):
    """Its output is at its end, and the command still runs."""

    def wait(self, timeout: float | None = None) -> int:
        raise TimeoutError(f"it still runs after {timeout} s")


class LingeringDeaf(Lingering):
    """And it takes no input."""

    def send(self, data: bytes) -> None:
        raise ConnectionFailed("the channel is closed")


@pytest.mark.parametrize("kind", [FakeChannel, Lingering, LingeringDeaf])
@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("sh: docker: not found", "Docker is not installed"),
        ("", "the Docker engine is not running"),
    ],
)
def test_its_own_words_count_whether_it_ends_or_lingers(
    kind: type[FakeChannel], stderr: str, words: str
) -> None:
    class Transport(FakeTransport):
        def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> FakeChannel:
            return kind(CommandResult(tuple(argv), 1, "", stderr))

    with pytest.raises(EngineUnavailable, match=words) as caught:
        DockerDriver(Transport(Host(name="gpu1", address="gpu1"))).find("node")

    assert caught.value.host == "gpu1"
