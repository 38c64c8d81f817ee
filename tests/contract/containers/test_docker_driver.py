"""The driver against a real Docker engine."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from clusterctl.containers.diff import Create, Keep, Recreate, compare
from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.containers.driver import EngineUnavailable
from clusterctl.containers.spec import CLUSTER_LABEL, ContainerSpec, Mount
from clusterctl.errors import CommandTimedOut, StepFailed
from clusterctl.inventory.model import Host
from clusterctl.transport.base import Channel
from clusterctl.transport.local import LocalTransport
from tests.contract.containers.dockerd import Engine
from tests.contract.transport.sshd import eventually
from tests.fakes.docker_registry import docker_registry
from tests.fakes.docker_run import docker_run_argv
from tests.fakes.image_archives import MadeImage, layer_tar, sha256

pytestmark = pytest.mark.dockerd

REFERENCE = "clusterctl-test/busybox:1"


@pytest.fixture
def driver(engine: Engine) -> DockerDriver:
    return engine.driver()


@pytest.fixture(scope="session")
def image(engine: Engine, import_busybox: Callable[[Engine, str], str]) -> str:
    return import_busybox(engine, REFERENCE)


@pytest.fixture
def spec(image: str, engine: Engine) -> Iterator[ContainerSpec]:
    yield ContainerSpec(
        name="clusterctl-demo",
        image=image,
        command=("/bin/sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"),
        env={"NCCL_SOCKET_IFNAME": "=eth0", "SPACED": "a b; $c 'd'"},
        mounts=(Mount(str(engine.home), "/host", read_only=True), Mount("/var/tmp", "/scratch")),
        ulimits={"nofile": 4096, "core": 0},
        capabilities=("IPC_LOCK",),
        labels={CLUSTER_LABEL: "demo", "clusterctl.role": "head"},
        stop_timeout=5,
    )
    for container in engine.driver().containers("demo"):
        engine.driver().remove(container.id)


def test_version_speaks_an_api_that_both_know(driver: DockerDriver) -> None:
    with driver._engine() as engine:
        assert tuple(map(int, engine.api_version.split("."))) >= (1, 41)
        assert engine.version(api_version=False)["Version"]


def test_image_has_what_is_compared(driver: DockerDriver, image: str) -> None:
    found = driver.image(REFERENCE)
    assert found is not None
    assert found.id == image
    assert found.tags == (REFERENCE,)
    assert len(found.layers) == 1
    assert found.size > 500_000
    assert found.env == {"PATH": "/bin"}


def test_an_image_that_is_not_there_is_none(driver: DockerDriver) -> None:
    assert driver.image("clusterctl-test/none:1") is None


def test_a_tag_and_its_removal(driver: DockerDriver, image: str) -> None:
    driver.tag(image, "localhost:5000/clusterctl-test/other:2")
    assert driver.image("localhost:5000/clusterctl-test/other:2") is not None
    driver.remove_image("localhost:5000/clusterctl-test/other:2")
    driver.remove_image("localhost:5000/clusterctl-test/other:2")
    assert driver.image("localhost:5000/clusterctl-test/other:2") is None
    assert driver.image(image) is not None


def test_a_container_is_made_as_its_spec_says(driver: DockerDriver, spec: ContainerSpec) -> None:
    assert compare(spec, driver.find(spec.name)) == Create()
    made = driver.run(spec)
    found = driver.find(spec.name)
    assert found is not None
    assert found.id == made
    assert found.running
    assert compare(spec, found) == Keep()
    assert found.command == spec.command
    assert dict(spec.env).items() <= found.env.items()
    assert set(found.mounts) == set(spec.mounts)
    assert found.ulimits == spec.ulimits
    assert found.capabilities == spec.capabilities
    assert found.drops_others
    assert "no-new-privileges" in found.security_options
    assert found.pids_limit == spec.pids_limit
    assert (found.network, found.ipc, found.restart, found.init) == (
        "host",
        "host",
        "unless-stopped",
        True,
    )
    assert [container.id for container in driver.containers("demo")] == [made]
    assert driver.containers("other") == []


def test_the_printed_docker_run_makes_the_same_container(
    driver: DockerDriver, engine: Engine, spec: ContainerSpec
) -> None:
    driver.run(spec)
    by_api = engine.docker("inspect", "-f", "{{json .Config}} {{json .HostConfig}}", spec.name)
    driver.remove(spec.name)
    engine.docker(*docker_run_argv(spec)[1:])
    by_hand = engine.docker("inspect", "-f", "{{json .Config}} {{json .HostConfig}}", spec.name)
    assert json.dumps(_comparable(by_hand), indent=1) == json.dumps(_comparable(by_api), indent=1)
    assert compare(spec, driver.find(spec.name)) == Keep()


def test_what_differs_is_told_from_a_real_container(
    driver: DockerDriver, spec: ContainerSpec
) -> None:
    driver.run(spec)
    wanted = ContainerSpec(
        name=spec.name,
        image=spec.image,
        command=spec.command,
        env={"NCCL_SOCKET_IFNAME": "=eth1"},
        mounts=spec.mounts[:1],
        ulimits={"nofile": 2048, "core": 0},
        labels=spec.labels,
        stop_timeout=5,
    )
    verdict = compare(wanted, driver.find(spec.name))
    assert verdict == Recreate(
        (
            "environment: NCCL_SOCKET_IFNAME changes",
            "environment: SPACED goes",
            "mount: /var/tmp:/scratch goes",
            "ulimit: nofile 4096 -> 2048",
            "capability: IPC_LOCK goes",
        )
    )


def test_stop_start_logs_and_remove(driver: DockerDriver, spec: ContainerSpec) -> None:
    made = driver.run(spec)
    assert eventually(lambda: "ready" in driver.logs(made, tail=10))
    driver.stop(made, timeout=5)
    driver.stop(made, timeout=5)
    stopped = driver.find(spec.name)
    assert stopped is not None
    assert not stopped.running
    driver.start(made)
    assert eventually(lambda: driver.logs(made, tail=10).count("ready") == 2)
    driver.remove(made)
    driver.remove(made)
    assert driver.find(spec.name) is None


def test_exec_gives_status_output_and_takes_stdin(
    driver: DockerDriver, spec: ContainerSpec
) -> None:
    made = driver.run(spec)
    said = driver.exec(made, ["/bin/sh", "-c", "cat; echo bad >&2; exit 3"], stdin=b"in")
    assert (said.status, said.stdout, said.stderr.strip()) == (3, "in", "bad")


def test_run_once_leaves_nothing(driver: DockerDriver, engine: Engine, image: str) -> None:
    said = driver.run_once(image, ["/bin/echo", "a b"])
    assert said.stdout == "a b\n"
    with pytest.raises(CommandTimedOut):
        driver.run_once(image, ["/bin/sleep", "100"], timeout=5)
    assert engine.docker("ps", "-aq", "--filter", "name=clusterctl-once") == ""


def test_a_container_that_cannot_start_is_taken_away(
    driver: DockerDriver, spec: ContainerSpec
) -> None:
    broken = ContainerSpec(
        name=spec.name,
        image=spec.image,
        command=spec.command,
        env={},
        labels=spec.labels,
        devices=("/dev/no-such",),
    )
    with pytest.raises(StepFailed) as raised:
        driver.run(broken)
    assert "/dev/no-such" in str(raised.value.detail)
    assert driver.find(spec.name) is None


def test_a_build_is_followed_and_labelled(driver: DockerDriver, image: str) -> None:
    said: list[str] = []
    dockerfile = f"FROM {REFERENCE}\nARG word\nRUN echo $word > /word\nLABEL made=here\n"
    driver.build(dockerfile, "clusterctl-test/built:1", {"word": "hello"}, said.append)
    built = driver.image("clusterctl-test/built:1")
    assert built is not None
    assert [found.id for found in driver.images({"made": "here"})] == [built.id]
    assert driver.run_once(built.id, ["/bin/cat", "/word"]).stdout == "hello\n"
    assert any("RUN echo" in line for line in said)


def test_a_build_that_fails_shows_its_last_lines(driver: DockerDriver, image: str) -> None:
    with pytest.raises(StepFailed, match="could not be built") as raised:
        driver.build(f"FROM {REFERENCE}\nRUN echo why; false\n", "x:1", {}, lambda _: None)
    assert "why" in str(raised.value.detail)


def test_a_build_that_fails_leaves_no_image_behind(driver: DockerDriver, image: str) -> None:
    before = {found.id for found in driver.images({})}
    with pytest.raises(StepFailed, match="could not be built"):
        driver.build(
            f"FROM {REFERENCE}\nARG word\nENV other=here\nRUN false\n", "x:1", {}, lambda _: None
        )
    assert {found.id for found in driver.images({})} == before
    assert image


def test_a_pull_from_nowhere_says_that_the_registry_is_out_of_reach(driver: DockerDriver) -> None:
    with pytest.raises(StepFailed, match="cannot reach the registry"):
        driver.pull("127.0.0.1:9/none:1", lambda _: None)


def test_a_registry_names_the_digest_of_a_tag(driver: DockerDriver, tmp_path: Path) -> None:
    pushed = MadeImage("acme/vllm:1", (layer_tar("base", 5000),))
    with docker_registry(tmp_path) as registry:
        reference = registry.push(pushed)
        assert driver.published(reference) == sha256(pushed.manifest)
        with pytest.raises(StepFailed, match="no such image"):
            driver.published(reference.replace(":1", ":2"))
    with pytest.raises(StepFailed, match="cannot reach the registry"):
        driver.published(reference)


def test_an_engine_that_is_down_is_named(engine: Engine) -> None:
    driver = DockerDriver(engine.transport, prefix=("env", "DOCKER_HOST=unix:///nowhere.sock"))
    with pytest.raises(EngineUnavailable, match="gpu1: the Docker engine is not running"):
        driver.containers("demo")


def test_a_client_that_is_not_installed_is_named(engine: Engine) -> None:
    driver = DockerDriver(engine.transport, prefix=("env", "PATH=/nowhere"))
    with pytest.raises(EngineUnavailable):
        driver.containers("demo")


def test_an_engine_that_hangs_is_given_up(engine: Engine) -> None:
    driver = DockerDriver(engine.transport, prefix=("sh", "-c", "sleep 60"), answer_limit=1)
    with pytest.raises(EngineUnavailable, match="does not answer"):
        driver.containers("demo")


def test_a_conversation_cut_in_between_is_taken_up_again(
    driver: DockerDriver, engine: Engine, spec: ContainerSpec
) -> None:
    """As when the engine was restarted: the kept channel is dead."""
    remembering = _Remembering(engine.transport.host)
    cut = DockerDriver(remembering, prefix=engine.prefix)
    cut.containers("demo")
    for channel in remembering.channels:
        channel.close()
    assert cut.containers("demo") == []


def test_a_driver_that_nobody_has_any_more_keeps_no_channel(engine: Engine) -> None:
    """A host gets four at once, and commands make drivers where they need one."""
    remembering = _Remembering(engine.transport.host)
    driver = DockerDriver(remembering, prefix=engine.prefix)
    gc.disable()  # what is in a cycle would stay until some collection
    try:
        driver.containers("demo")
        *asked_first, kept = remembering.channels
        for channel in asked_first:
            channel.wait(5)
        with pytest.raises(TimeoutError):
            kept.wait(0)
        del driver
        kept.wait(5)
    finally:
        gc.enable()


class _Remembering(LocalTransport):
    """Keeps the channels it opened, so that a test can cut them."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.channels: list[Channel] = []

    def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> Channel:
        channel = super().open_channel(argv, sudo=sudo)
        self.channels.append(channel)
        return channel


def _comparable(inspected: str) -> object:
    decoder = json.JSONDecoder()
    config, end = decoder.raw_decode(inspected)
    host, _ = decoder.raw_decode(inspected[end + 1 :])
    for unimportant in ("Image", "AttachStdin", "AttachStdout", "AttachStderr", "Hostname"):
        config.pop(unimportant, None)
    nothing: tuple[object, ...] = (None, [], {}, "", 0, False)
    host = {name: value for name, value in host.items() if value not in nothing}
    host.pop("ConsoleSize", None)
    # Old clients, as Debian 12's, hand a name on without CAP_, which means the same.
    host["CapAdd"] = [name.removeprefix("CAP_") for name in host.get("CapAdd", ())]
    config["Env"].sort()
    host["Binds"].sort()
    host["Ulimits"].sort(key=str)
    return config, dict(sorted(host.items()))


def test_a_reference_with_a_digest_is_found_by_its_name(driver: DockerDriver, image: str) -> None:
    """As an engine knows it that did not pull it from its registry."""
    by_digest = f"{REFERENCE}@sha256:{'a' * 64}"
    found = driver.image(by_digest)
    assert found is not None
    assert found.id == image
