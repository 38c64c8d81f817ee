"""The driver: never without being asked for, and refused where it could only fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.step import Change
from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.steps.nvidia_driver import (
    DriverFile,
    DriverPackage,
    NvidiaDriver,
    driver_source,
)
from tests.unit.steps.stage import Cluster, cluster
from tests.unit.steps.stage_install import ROCKY, driver_file, gpus_on_the_bus


@pytest.fixture
def made() -> Cluster:
    made = cluster()
    gpus_on_the_bus(made)
    return made


def step() -> NvidiaDriver:
    return NvidiaDriver(DriverFile(driver_file()))


def test_a_host_without_gpus_gets_none() -> None:
    assert step().check(cluster().head_view) is None


def test_a_host_without_a_driver(made: Cluster) -> None:
    assert step().check(made.head_view) == Change(
        "install driver 580.95.05 from NVIDIA-Linux-x86_64-580.95.05.run",
        before="no driver",
        after="580.95.05",
    )


def test_another_driver_is_replaced_only_after_asking(made: Cluster) -> None:
    made.head.gpus.driver = "535.161.08"
    made.head.gpus.computing = ("4711",)
    change = step().check(made.head_view)
    assert change is not None
    assert change.disruptive
    assert change.summary.endswith("in place of 535.161.08; ends processes 4711 on its GPUs")


def test_a_package_never_replaces_a_driver_that_works(made: Cluster) -> None:
    made.head.gpus.driver = "535.161.08"
    assert NvidiaDriver(DriverPackage("nvidia-driver")).check(made.head_view) is None


def test_a_package_is_installed_where_there_is_none(made: Cluster) -> None:
    NvidiaDriver(DriverPackage("nvidia-driver")).apply(made.head_view, Change(""))
    assert "nvidia-driver" in made.head.packages


def test_nouveau_must_go_first(made: Cluster) -> None:
    made.head.gpus.nouveau = True
    with pytest.raises(RequirementsNotMet, match="nouveau") as raised:
        step().check(made.head_view)
    assert "blacklist nouveau" in str(raised.value.hint)


def test_a_compiler_and_headers_must_be_there(made: Cluster) -> None:
    made.head.gpus.can_build = False
    with pytest.raises(RequirementsNotMet, match="compiler or the kernel's headers") as raised:
        step().check(made.head_view)
    assert "apt-get install gcc make linux-headers" in str(raised.value.hint)
    rocky = replace(made.head_view, facts=replace(made.head_view.facts, os=ROCKY))
    with pytest.raises(RequirementsNotMet) as raised:
        step().check(rocky)
    assert "dnf install gcc make kernel-devel" in str(raised.value.hint)


@pytest.mark.parametrize("wanted", ["/no/such/NVIDIA-Linux-x86_64-580.95.05.run", "a.run", "x;y"])
def test_what_is_no_driver(wanted: str) -> None:
    with pytest.raises(UsageError, match="--install-driver"):
        driver_source(wanted)


def test_a_file_or_a_package(tmp_path: Path) -> None:
    file = tmp_path / "NVIDIA-Linux-x86_64-580.95.05-vgpu.run"
    file.touch()
    assert isinstance(driver_source(str(file)), DriverFile)
    assert isinstance(driver_source("nvidia-driver-580-server"), DriverPackage)
