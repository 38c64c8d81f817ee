"""The toolkit: which hosts get it, at which version, from where, and what it may disturb."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.step import Change
from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError
from clusterctl.inventory.model import Packages, PackageSource
from clusterctl.packages.target import TOOLKIT
from clusterctl.steps.nvidia_toolkit import MARKER, NvidiaToolkit, ToolkitAbsent
from tests.fakes.container_engine import foreign
from tests.unit.steps.stage import Cluster, cluster
from tests.unit.steps.stage_install import DEBS, bundle, gpu_host, with_gpus


@pytest.fixture
def made() -> Cluster:
    made = cluster()
    gpu_host(made)
    return made


def step(packages: Packages | None = None, *names: str) -> NvidiaToolkit:
    brought = bundle(*names) if names else ()
    return NvidiaToolkit(packages, brought, pause=lambda _: None)


def install(made: Cluster, version: str, *names: str) -> None:
    made.head.packages |= set(names or TOOLKIT)
    made.head.versions |= dict.fromkeys(names or TOOLKIT, version)


def test_a_host_without_gpus_needs_none() -> None:
    assert step().check(cluster().head_view) is None


def test_the_plan_says_which_version_from_where(made: Cluster) -> None:
    change = step().check(made.head_view)
    assert change == Change(
        "install nvidia-container-toolkit 1.19.1-1 from "
        "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
        before="no NVIDIA toolkit",
        after="1.19.1-1",
    )


def test_all_four_packages_get_one_version(made: Cluster) -> None:
    step(None, *DEBS).apply(made.head_view, Change(""))
    assert {made.head.versions[name] for name in TOOLKIT} == {"1.19.1-1"}
    assert made.head.files[MARKER][0].decode().split() == sorted(TOOLKIT)


def test_the_hosts_own_sources_come_before_nvidias(made: Cluster) -> None:
    made.head.toolkit_offered = "1.19.1-1"
    step().apply(made.head_view, Change(""))
    assert set(TOOLKIT) <= made.head.packages
    assert not [path for path in made.head.files if path.endswith(".list")]


def test_another_version_that_a_host_has_is_left_alone(made: Cluster) -> None:
    install(made, "1.17.8-1")
    assert step().check(made.head_view) is None


def test_a_version_that_the_inventory_names_is_seen_to(made: Cluster) -> None:
    install(made, "1.17.8-1")
    made.head.engine.containers["x"] = foreign("training")
    change = step(Packages(toolkit="1.19.1-1")).check(made.head_view)
    assert change is not None
    assert change.before == "1.17.8-1"
    assert change.disruptive
    assert "which may take the GPUs of training" in change.summary


def test_packages_of_several_versions_are_put_right(made: Cluster) -> None:
    install(made, "1.17.8-1", *TOOLKIT[1:])
    install(made, "1.19.1-1", TOOLKIT[0])
    change = step().check(made.head_view)
    assert change is not None
    assert change.before == "1.17.8-1, 1.19.1-1"


def test_what_was_brought_may_lack_it(made: Cluster) -> None:
    with pytest.raises(RequirementsNotMet, match="lacks NVIDIA's toolkit") as raised:
        step(None, "docker.io_20_amd64.deb").check(made.head_view)
    assert "clusterctl packages bundle --for debian12" in str(raised.value.hint)


def test_what_was_brought_must_be_the_version_that_the_inventory_names(made: Cluster) -> None:
    """Else every run would install it again."""
    wanted = step(Packages(toolkit="1.18.2-1"), *DEBS)
    with pytest.raises(
        RequirementsNotMet, match=r"is 1\.18\.2-1, but .* contains 1\.19\.1-1"
    ) as raised:
        wanted.check(made.head_view)
    assert "--toolkit 1.18.2-1" in str(raised.value.hint)
    install(made, "1.18.2-1")
    assert wanted.check(made.head_view) is None


def test_what_was_brought_may_be_for_another_system(made: Cluster) -> None:
    arm = replace(made.head_view.facts.os, architecture="aarch64")
    view = replace(made.head_view, facts=replace(made.head_view.facts, os=arm))
    with pytest.raises(RequirementsNotMet, match="needs packages for debian12 aarch64"):
        step(None, *DEBS).check(view)


def test_a_key_that_is_not_nvidias_is_refused(made: Cluster) -> None:
    """What the fake host fetches is no key at all."""
    with pytest.raises(StepFailed, match="is not the key that signs nvidia-container-toolkit"):
        step().apply(made.head_view, Change(""))
    assert not [path for path in made.head.files if path.endswith(".list")]


def test_a_key_of_ones_own_that_is_none(made: Cluster, tmp_path: Path) -> None:
    packages = Packages(nvidia=PackageSource(key=tmp_path / "none.asc"))
    with pytest.raises(UsageError, match="cannot be used"):
        step(packages).apply(made.head_view, Change(""))


def test_purge_takes_away_what_we_brought_and_nothing_else(made: Cluster) -> None:
    made.head.packages.add("libnvidia-container1")
    step(None, *DEBS).apply(made.head_view, Change(""))
    absent = ToolkitAbsent("/etc/clusterctl/demo")
    made.head.directories["/etc/clusterctl/other"] = 0o755
    assert absent.check(made.head_view) is None  # the other cluster's nodes use it
    del made.head.directories["/etc/clusterctl/other"]
    assert absent.check(made.head_view) is not None
    absent.apply(made.head_view, Change(""))
    assert made.head.packages & set(TOOLKIT) == {"libnvidia-container1"}
    assert absent.check(made.head_view) is None


def test_a_promise_alone_makes_a_gpu_host(made: Cluster) -> None:
    view = replace(with_gpus(made.head_view), facts=cluster().head_view.facts)
    assert step().check(view) is not None
