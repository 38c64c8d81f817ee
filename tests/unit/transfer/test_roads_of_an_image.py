"""Which way an image comes to the hosts: their own way to the registry, or this machine's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.containers.driver import ContainerDriver, Image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.engine_state import EngineState
from clusterctl.transfer.image_sources import ASKED, ImageFinder, PulledFirst
from tests.fakes.container_engine import FakeDriver, FakeEngine

STOCK = EngineState(
    version="20.10.24",
    containerd=False,
    rootless=False,
    platform="linux/amd64",
    root="/var/lib/docker",
    python="python3",
    unusable=(),
    images=(),
    digests=frozenset(),
    free=1 << 40,
    cache_free=1 << 40,
    one_disk=True,
)

NOWHERE = "127.0.0.1:9/acme/vllm:1"  # This machine gets no answer there


def engine(*, reaches: bool) -> FakeEngine:
    found = FakeEngine()
    if reaches:
        found.registry[NOWHERE] = Image("sha256:1", ("sha256:a",), 1, (NOWHERE,))
    return found


def drivers(**reaches: bool) -> Mapping[str, ContainerDriver]:
    return {
        name: FakeDriver(name, engine(reaches=each), lambda: None) for name, each in reaches.items()
    }


@pytest.fixture
def finder(tmp_path: Path) -> ImageFinder:
    hosts = drivers(gpu1=False, gpu2=True, gpu3=True)
    return ImageFinder(
        NOWHERE, hosts, tuple(hosts), pullers=tuple(hosts), store=BlobStore(tmp_path / "cache")
    )


def pulled_first(finder: ImageFinder, *, without_python: str = "") -> PulledFirst:
    engines = dict.fromkeys(finder.drivers, STOCK)
    if without_python:
        engines[without_python] = replace(STOCK, python=None)
    found = finder.find(engines)
    assert isinstance(found, PulledFirst)
    return found


def test_the_first_host_that_reaches_the_registry_pulls(finder: ImageFinder) -> None:
    found = pulled_first(finder)
    assert found.host == "gpu2"
    assert "gpu2 pulls it first, as sha256:" in found.reason
    assert "its engine reaches the registry" in found.reason


def test_a_host_that_cannot_pass_it_on_is_left_out(finder: ImageFinder) -> None:
    assert pulled_first(finder, without_python="gpu2").host == "gpu3"


def test_hosts_outside_of_the_run_pull_nothing(finder: ImageFinder) -> None:
    assert pulled_first(replace(finder, pullers=("gpu1", "gpu3"))).host == "gpu3"


def test_where_nobody_gets_an_answer_a_host_tries_with_its_own_login(tmp_path: Path) -> None:
    hosts = drivers(gpu1=False, gpu2=False)
    finder = ImageFinder(
        NOWHERE, hosts, tuple(hosts), pullers=("gpu2",), store=BlobStore(tmp_path / "cache")
    )
    found = pulled_first(finder)
    assert found.host == "gpu2"
    assert "gpu2 pulls it first: from here, 127.0.0.1:9 refuses connections" in found.reason


def test_a_registry_is_asked_by_a_few_hosts_only(tmp_path: Path) -> None:
    hosts = drivers(**{f"gpu{number}": number == ASKED + 1 for number in range(1, ASKED + 3)})
    finder = ImageFinder(
        NOWHERE, hosts, tuple(hosts), pullers=tuple(hosts), store=BlobStore(tmp_path / "cache")
    )
    assert "from here" in pulled_first(finder).reason
