"""What every container driver does: Docker's against a real engine, and the fake that unit tests
stand on. A driver of another engine joins them here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from clusterctl.containers.diff import Keep, compare
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.spec import CLUSTER_LABEL, ContainerSpec, Mount
from clusterctl.errors import StepFailed
from clusterctl.transfer.engine_state import inspect_engine
from tests.contract.containers.dockerd import Engine
from tests.fakes.container_engine import FakeDriver, FakeEngine, image

REFERENCE = "clusterctl-test/contract:1"


@pytest.fixture(params=["fake", pytest.param("docker", marks=pytest.mark.dockerd)])
def driver(request: pytest.FixtureRequest) -> Iterator[ContainerDriver]:
    """Of an engine with one image."""
    if request.param == "fake":
        there = image("sha256:contract", REFERENCE)
        yield FakeDriver("gpu1", FakeEngine(images={there.id: there}), lambda: None)
        return
    engine: Engine = request.getfixturevalue("engine")
    make: Callable[[Engine, str], str] = request.getfixturevalue("import_busybox")
    make(engine, REFERENCE)
    made = engine.driver()
    yield made
    for container in made.containers("contract"):
        made.remove(container.id)
    made.remove_image(REFERENCE)


def spec(driver: ContainerDriver) -> ContainerSpec:
    there = driver.image(REFERENCE)
    assert there
    return ContainerSpec(
        name="clusterctl-contract",
        image=there.id,
        command=("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"),
        env={"A": "1", "SPACED": "a b"},
        mounts=(Mount("/var/tmp", "/scratch", read_only=True),),
        ulimits={"nofile": 4096},
        labels={CLUSTER_LABEL: "contract"},
        stop_timeout=5,
    )


def test_it_names_its_host(driver: ContainerDriver) -> None:
    assert driver.host == "gpu1"


def test_an_image_is_found_by_name_and_by_id_and_another_is_not(driver: ContainerDriver) -> None:
    found = driver.image(REFERENCE)
    assert found
    assert REFERENCE in found.tags
    by_id = driver.image(found.id)
    assert by_id
    assert by_id.layers == found.layers
    assert driver.image("clusterctl-test/none:1") is None
    assert driver.images({"clusterctl.none": "x"}) == []
    assert found.id in [image.id for image in driver.images({})]


def test_a_second_name_comes_and_goes_without_the_first(driver: ContainerDriver) -> None:
    found = driver.image(REFERENCE)
    assert found
    driver.tag(found.id, "clusterctl-test/other:2")
    again = driver.image("clusterctl-test/other:2")
    assert again
    assert again.id == found.id
    driver.remove_image("clusterctl-test/other:2")
    driver.remove_image("clusterctl-test/other:2")
    assert driver.image("clusterctl-test/other:2") is None
    assert driver.image(REFERENCE)


def test_a_container_is_kept_as_its_spec_says_and_found_by_its_cluster(
    driver: ContainerDriver,
) -> None:
    wanted = spec(driver)
    made = driver.run(wanted)
    found = driver.find(wanted.name)
    assert found
    assert (found.id, found.running, found.cluster) == (made, True, "contract")
    assert found.fingerprint == wanted.fingerprint()
    assert compare(wanted, found) == Keep()
    assert [one.id for one in driver.containers("contract")] == [made]
    assert driver.containers("another") == []
    assert driver.find("clusterctl-none") is None
    with pytest.raises(StepFailed):
        driver.run(wanted)


def test_stopping_and_removing_twice_are_no_errors(driver: ContainerDriver) -> None:
    made = driver.run(spec(driver))
    driver.stop(made, 5)
    driver.stop(made, 5)
    (stopped,) = driver.containers("contract")
    assert not stopped.running
    driver.start(made)
    (started,) = driver.containers("contract")
    assert started.running
    driver.remove(made)
    driver.remove(made)
    assert driver.containers("contract") == []


def test_its_stock_names_the_image_and_what_is_free(driver: ContainerDriver) -> None:
    found = driver.image(REFERENCE)
    assert found
    stock = inspect_engine(driver)
    held = stock.tagged(REFERENCE)
    assert held
    assert held.layers == found.layers
    assert stock.free > 0


def test_command_lines_carry_what_they_are_about(driver: ContainerDriver) -> None:
    """A program on the host runs them: nothing is left to a shell."""
    assert driver.save_argv("sha256:x")[-1] == "sha256:x"
    assert driver.pull_argv(REFERENCE)[-1] == REFERENCE
    assert driver.exec_argv("node", ["a", "b c"])[-3:] == ("node", "a", "b c")
    assert driver.exec_argv("node", ["a"], terminal=True)[-3:] == ("--tty", "node", "a")
