"""How fast a link is, or that nobody knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.errors import ConnectionFailed
from clusterctl.inventory.model import Host
from clusterctl.transfer.upload_rate import LIMIT, SAMPLE, upload_rate
from clusterctl.transport.base import Channel
from clusterctl.transport.local import LocalTransport
from tests.fakes.container_engine import FakeChannel, FakeDriver, FakeEngine


class StuckChannel(FakeChannel):
    """Its `wait` ends as it is told."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def wait(self, timeout: float | None = None) -> int:
        raise self._error

    def __enter__(self) -> StuckChannel:
        return self


class StuckDriver(FakeDriver):
    def __init__(self, error: Exception) -> None:
        super().__init__("gpu1", FakeEngine(), lambda: None)
        self._error = error

    def host_open(self, argv: Sequence[str]) -> Channel:
        return StuckChannel(self._error)


def test_a_link_that_takes_too_long_is_slow() -> None:
    stuck = StuckDriver(TimeoutError("still runs"))
    assert upload_rate(stuck, lambda: False) == SAMPLE * 8 / 1e6 / LIMIT


@pytest.mark.parametrize("busy", [False, True])
def test_nobody_knows(busy: bool) -> None:
    """The connection broke, or a busy machine would measure itself."""
    assert upload_rate(StuckDriver(ConnectionFailed("gone")), lambda: busy) is None


def test_this_machine_is_no_slow_link() -> None:
    here = DockerDriver(LocalTransport(Host(name="gpu1", address="localhost")))
    rate = upload_rate(here, lambda: False)
    assert rate
    assert rate > 8
