"""An image on its way to three whole hosts over slow links, and what may come between."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.lab import faults, lifecycle
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.paths import LabPaths
from tests.bench.source_link import sent_bytes
from tests.bench.synthetic_image import make_archive, make_layer
from tests.lab.cluster import Operator, Ran, quiet, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

REFERENCE = "lab/image:1"
HOSTS = ("gpu1", "gpu2", "gpu3")
SIZES = (30, 20, 10, 4, 1)
"""MB of the layers, unpacked; with links of 100 Mbit/s a transfer takes 4 s at least."""

INSTALL = "apt-get -qq install -y --no-install-recommends docker.io docker-cli python3"
ENGINE = f"apt-get -qq update && {INSTALL} && systemctl start docker"
PASSING = "/var/lib/clusterctl/blobs /var/lib/clusterctl/saved"
FORGET = f"docker images -q | sort -u | xargs -r docker rmi -f; rm -rf {PASSING}"
START = (
    f"docker run --rm --network none --init --entrypoint /sbin/docker-init {REFERENCE} --version"
)


@dataclass(frozen=True)
class Scene:
    """Hosts without the image, and an operator with an archive of it."""

    operator: Operator
    archives: Path
    size: int
    """Bytes of the image, packed."""
    on_host: OnHost

    def words(self, archive: str = "first") -> tuple[str, ...]:
        return ("image", "push", REFERENCE, "--from", str(self.archives / f"{archive}.tar"))

    def forget(self) -> None:
        """No host has any of it, whatever was there before."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.on_host(name, FORGET), HOSTS))

    def push(self, archive: str = "first") -> Ran:
        return self.operator.run(*self.words(archive), timeout=300)

    def sent(self, work: Callable[[], object]) -> float:
        """What left this machine meanwhile, as a part of the image."""
        before = sent_bytes()
        work()
        return (sent_bytes() - before) / self.size

    def broken_at(self, part: float, fault: Callable[[], object]) -> Ran:
        """A push, and `fault` once that part of the image has left this machine."""
        before = sent_bytes()
        process = self.operator.start(*self.words())
        until(
            lambda: sent_bytes() - before > part * self.size or process.poll() is not None,
            within=120,
            what="the push begins",
            pause=0.05,
        )
        fault()
        stdout, stderr = process.communicate(timeout=300)
        return Ran(process.returncode, stdout, stderr, 0.0)

    def holders(self) -> list[str]:
        """Hosts on which a container starts from the image."""
        with ThreadPoolExecutor() as pool:
            started = pool.map(lambda name: self.on_host(name, START).returncode, HOSTS)
            return [name for name, status in zip(HOSTS, started, strict=True) if status == 0]


@pytest.fixture(scope="module")
def inventory(lab: LabPaths, on_host: OnHost) -> Iterator[Path]:
    lifecycle.down(say=quiet)
    lifecycle.up(len(HOSTS), say=quiet)
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda name: on_host(name, ENGINE, timeout=600), HOSTS):
            assert done.returncode == 0, done.stderr
    yield lifecycle.up(len(HOSTS), link_rate="100mbit", say=quiet).inventory
    lifecycle.down(say=quiet)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    directory = tmp_path_factory.mktemp("archives")
    layers = [make_layer(directory, size, f"layer{n}") for n, size in enumerate(SIZES)]
    top = make_layer(directory, SIZES[-1], "another")
    size = make_archive(directory / "first.tar", REFERENCE, layers)
    make_archive(directory / "changed.tar", REFERENCE, [*layers[:-1], top])
    return directory, size


@pytest.fixture
def scene(
    inventory: Path,
    archives: tuple[Path, int],
    tmp_path: Path,
    on_host: OnHost,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    monkeypatch.setenv("CLUSTERCTL_INVENTORY", str(inventory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Scene(Operator(tmp_path / "state"), *archives, on_host)
    made.forget()
    return made


def test_it_comes_to_all_hosts_at_once_and_a_second_push_moves_nothing(scene: Scene) -> None:
    assert "3 changes on 3 hosts" in scene.operator.run(*scene.words(), "--dry-run").stdout
    assert scene.holders() == []

    def sent_to_all() -> float:
        scene.forget()
        return scene.sent(lambda: scene.operator.ok(*scene.words()))

    # Once in two times: the headers of many small packets count, and those of a busy machine are.
    assert any(sent_to_all() < 1.02 for _ in range(2))
    assert scene.holders() == list(HOSTS)
    again = scene.operator.ok(*scene.words(), "--json").json
    assert (again["changed"], again["sent"]) == (0, 0)
    assert "nothing to transfer" in scene.operator.ok("image", "push", REFERENCE).stdout
    changed = scene.operator.ok(*scene.words("changed"), "--json").json
    assert (changed["changed"], changed["sent"] < 0.03 * scene.size) == (3, True)
    for name in HOSTS:
        left = scene.on_host(name, f"find {PASSING} -type f 2>/dev/null; docker images").stdout
        assert "sha256" not in left, left
        assert "127.0.0.1" not in left, left


def test_the_operators_side_killed_and_run_again_goes_on_where_it_stopped(scene: Scene) -> None:
    def both() -> None:
        before = sent_bytes()
        running = scene.operator.start(*scene.words())
        until(
            lambda: sent_bytes() - before > 0.5 * scene.size,
            within=120,
            what="half of it is sent",
            pause=0.05,
        )
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=120)
        ran = scene.push()
        assert ran.status == 0, ran.text

    assert scene.sent(both) < 1.25
    assert scene.holders() == list(HOSTS)


def test_a_relay_that_is_killed_is_started_again(scene: Scene) -> None:
    ran = scene.broken_at(0.4, lambda: scene.on_host("gpu2", "pkill -9 python3"))
    assert ran.status == 0, ran.text
    assert scene.holders() == list(HOSTS)


def test_a_link_that_is_down_for_a_while_costs_no_byte(scene: Scene) -> None:
    nic = host_by_name("gpu2").nics[0].name

    def cut() -> None:
        faults.pull_cable("gpu2", nic)
        threading.Event().wait(6)  # it is the duration that is tried
        faults.plug_cable("gpu2", nic)

    runs: list[Ran] = []
    part = scene.sent(lambda: runs.append(scene.broken_at(0.4, cut)))
    assert runs[0].status == 0, runs[0].text
    assert part < 1.04
    assert scene.holders() == list(HOSTS)


@pytest.mark.long
def test_a_host_that_is_lost_keeps_no_other_from_its_image(scene: Scene) -> None:
    try:
        ran = scene.broken_at(0.4, lambda: faults.power_off("gpu1"))
        assert ran.status != 0
        assert "gpu1" in ran.stderr
        assert scene.holders() == ["gpu2", "gpu3"]
    finally:
        faults.power_on("gpu1")
    until(
        lambda: scene.on_host("gpu1", "docker version").returncode == 0,
        within=180,
        what="gpu1's engine",
    )
    part = scene.sent(lambda: scene.operator.ok("image", "push", REFERENCE))
    assert part < 0.05, "it comes from a host that has it"
    assert scene.holders() == list(HOSTS)


def test_a_host_without_python_is_named_before_anything_moves(scene: Scene) -> None:
    file = "$(readlink -f /usr/bin/python3)"
    away = f"mv {file} /usr/bin/python.away && echo {file} >/run/python.away"
    assert scene.on_host("gpu3", away).returncode == 0
    try:
        ran: list[Ran] = []
        part = scene.sent(lambda: ran.append(scene.push()))
        assert ran[0].status in (5, 6), ran[0].text
        assert "gpu3" in ran[0].stderr, ran[0].text
        assert "clusterctl bootstrap" in ran[0].stderr, ran[0].text
        assert part < 0.05, "bytes moved"
    finally:
        scene.on_host("gpu3", "mv /usr/bin/python.away $(cat /run/python.away)")
    assert scene.holders() == []


def test_a_truncated_archive_is_named_and_brings_nothing(scene: Scene) -> None:
    whole = (scene.archives / "first.tar").read_bytes()
    (scene.archives / "short.tar").write_bytes(whole[: len(whole) // 2])
    ran = scene.push("short")
    assert ran.status in (5, 6), ran.text
    assert "short.tar" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert scene.holders() == []


def test_an_image_that_is_nowhere_is_said_so(scene: Scene) -> None:
    ran = scene.operator.run("image", "push", "registry.invalid/no/such:1", timeout=300)
    assert ran.status == 6, ran.text
    assert "registry.invalid/no/such:1 is on no host" in ran.stderr
    told = scene.operator.run("image", "push", REFERENCE, "--from", "host:gpu2", "--json")
    assert "has no lab/image:1" in json.dumps(told.json)
