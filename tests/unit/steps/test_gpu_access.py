"""GPUs in containers: by CDI or by NVIDIA's runtime, and what a restart of the engine stops."""

from __future__ import annotations

import pytest

from clusterctl.engine.step import Change, Unknown
from clusterctl.errors import StepFailed
from clusterctl.steps.gpu_access import RULE_PATH, GpuAccess, found_in
from tests.fakes.container_engine import foreign
from tests.fakes.host_gpus import DRIVER
from tests.unit.steps.stage import Cluster, cluster
from tests.unit.steps.stage_install import with_gpus


@pytest.fixture
def made() -> Cluster:
    made = cluster()
    made.head_view = with_gpus(made.head_view)
    return made


def check(made: Cluster) -> Change:
    change = GpuAccess().check(made.head_view)
    assert isinstance(change, Change)
    return change


def ready(made: Cluster) -> None:
    gpus = made.head.gpus
    gpus.specified_for, gpus.linked = DRIVER, True
    gpus.configured = gpus.offered = True
    made.head.files[RULE_PATH] = (b"", 0o644)


def test_a_host_without_gpus_is_not_looked_at() -> None:
    assert GpuAccess().check(cluster().head_view) is None


def test_a_host_that_is_ready(made: Cluster) -> None:
    ready(made)
    assert GpuAccess().check(made.head_view) is None


def test_nothing_can_be_told_before_the_engine_is_there(made: Cluster) -> None:
    made.head.engine.running = False
    found = GpuAccess().check(made.head_view)
    assert found == Unknown("the container engine must be installed first")


def test_cdi_that_is_on_needs_no_restart(made: Cluster) -> None:
    ready(made)
    made.head.gpus.specified_for = ""
    made.head.engine.containers["x"] = foreign("training")
    assert check(made) == Change("write the CDI specification (missing)")


def test_a_specification_for_another_driver_is_stale(made: Cluster) -> None:
    ready(made)
    made.head.gpus.specified_for = "570.1"
    assert "is for another driver" in check(made).summary


def test_a_specification_for_other_gpus_is_stale(made: Cluster) -> None:
    """A host that got GPUs or lost some: its containers would get those of before."""
    ready(made)
    made.head.gpus.moved = True
    change = check(made)
    assert change == Change("write the CDI specification (/etc/cdi/nvidia.yaml is for other GPUs)")
    GpuAccess().apply(made.head_view, change)
    assert GpuAccess().check(made.head_view) is None


@pytest.mark.parametrize(
    ("docker", "what"), [("20.10.24", "NVIDIA's runtime"), ("28.1.1", "CDI"), ("27.5.1", "CDI")]
)
def test_a_restart_names_the_containers_it_stops(made: Cluster, docker: str, what: str) -> None:
    ready(made)
    made.head.gpus.docker = docker
    made.head.gpus.offered = False
    made.head.engine.containers["x"] = foreign("training")
    assert check(made) == Change(
        f"enable {what} in Docker and restart it, which stops training", disruptive=True
    )


@pytest.mark.parametrize("live_restore", [True, False])
def test_a_restart_that_stops_nothing_need_not_be_asked_for(
    made: Cluster, live_restore: bool
) -> None:
    ready(made)
    made.head.gpus.offered = False
    made.head.gpus.live_restore = live_restore
    if live_restore:
        made.head.engine.containers["x"] = foreign("training")
    change = check(made)
    assert not change.disruptive
    assert change.summary.endswith("which stops no container")


def test_an_engine_that_does_not_take_it_is_said(made: Cluster) -> None:
    ready(made)
    made.head.gpus.offered = False
    made.head.gpus.deaf = True
    with pytest.raises(StepFailed, match="does not provide them"):
        GpuAccess(pause=lambda _: None).apply(made.head_view, Change(""))


def test_what_a_real_host_says_is_read() -> None:
    found = found_in(
        'ctk=/usr/bin/nvidia-ctk\ninfo={"ServerVersion":"29.1.3","CDISpecDirs":["/etc/cdi"]}\n'
        "runs=clusterctl-demo\ndriver=580.159.04\nspec=/var/run/cdi/nvidia.yaml\n"
        "fresh=/var/run/cdi/nvidia.yaml\nlost=/dev/nvidia0\n"
    )
    assert (found.toolkit, found.by_cdi, found.needs_restart) == (True, True, False)
    assert found.fresh
    assert found.unlinked == ("/dev/nvidia0",)
    assert found.stopped_by_restart == ("clusterctl-demo",)
    assert not found.rule
