"""The first command, on machines that are not as its writer's was: from caches to a completion."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.cluster import Ran
from tests.machines.machine import Machine

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines are made by root"),
    pytest.mark.timeout(3600, func_only=True),
]

DEMO = ("scripts/demo.sh", "--model", "tiny", "--down")
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def ready(
    seeded: Machine, clone: Callable[..., Path], python: Callable[..., None]
) -> Callable[..., Path]:
    """Makes a clone that only lacks its .venv."""

    def make(name: str = "clusterctl") -> Path:
        python()
        return clone(name)

    return make


def goes_well(ran: Ran) -> None:
    assert ran.status == 0, ran.text
    for words in ("rank 1 gpu2", "healthy", '"object":"text_completion"', "the lab is down"):
        assert words in ran.stdout, ran.text


def test_hosts_of_a_closed_umask_are_as_others(
    seeded: Machine, clone: Callable[..., Path], python: Callable[..., None]
) -> None:
    python()
    place = clone()
    assert seeded.run("scripts/setup.sh", "--lab", cwd=place, timeout=600).status == 0
    ran = seeded.run(".venv/bin/clusterctl", "lab", "up", cwd=place, umask="077", timeout=300)
    assert ran.status == 0, ran.text
    login = ("ssh", "-i", "/var/lib/clusterctl-lab/keys/id_ed25519", "-o",
             "UserKnownHostsFile=/var/lib/clusterctl-lab/keys/known_hosts")  # fmt: skip
    ops = seeded.run(*login, "ops@10.77.0.12", "ls / && stat -c %a / /data/models")
    assert ops.status == 0, ops.text
    assert ops.stdout.split()[-2:] == ["755", "755"], ops.text
    other = seeded.run(
        ".venv/bin/clusterctl", "lab", "up", cwd=place, CLUSTERCTL_LAB_DIR=str(seeded.home / "lab")
    )
    assert other.status == 5, other.text
    assert "another lab is up" in other.stdout
    assert "CLUSTERCTL_LAB_DIR=/var/lib/clusterctl-lab clusterctl lab down" in other.stdout


def test_forwarding_is_off_and_the_name_server_never_answers(
    seeded: Machine, ready: Callable[..., Path], record_property: Callable[[str, object], None]
) -> None:
    ran = seeded.run(*DEMO, cwd=ready(), timeout=1800)
    goes_well(ran)
    record_property("seconds", round(ran.seconds))


def test_all_that_is_odd_at_once(
    seeded: Machine, ready: Callable[..., Path], record_property: Callable[[str, object], None]
) -> None:
    """A path with spaces, umask 077, the C locale, proxies to nowhere, a home that cannot be
    written to, 200 MB of temporary space, and SIGHUP ignored."""
    place = ready("my clone of clusterctl")
    seeded.run("mount", "--bind", seeded.home, seeded.home)
    seeded.run("mount", "-o", "remount,bind,ro", seeded.home)
    seeded.run("mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", "/tmp")
    seeded.environment |= {"LANG": "C", "LC_ALL": "POSIX"}
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy")
    seeded.environment |= dict.fromkeys(names, NOWHERE)
    ran = seeded.run(*DEMO, cwd=place, umask="077", ignoring="HUP", timeout=1800)
    goes_well(ran)
    record_property("seconds", round(ran.seconds))


@contextlib.contextmanager
def busy(machine: Machine, load: int) -> Iterator[None]:
    """So many processes of the machine want to compute all the time."""
    spinning = [machine.start("sh", "-c", "while :; do :; done") for _ in range(load)]
    yield
    for process in spinning:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_machine_has_six_other_things_to_do(
    seeded: Machine, ready: Callable[..., Path], record_property: Callable[[str, object], None]
) -> None:
    place = ready()
    with busy(seeded, 6):
        ran = seeded.run(*DEMO, cwd=place, timeout=2400)
    goes_well(ran)
    record_property("seconds", round(ran.seconds))


STAGES = (
    "$ clusterctl lab up",
    "gpu1: created its disk",
    "$ clusterctl bootstrap",
    "\nContainer engine\n",
    "\nImage\n",
    "\nRay workers\n",
    "$ clusterctl serve",
    "A completion",
)


def test_a_run_that_is_killed_at_any_stage_is_run_again(
    seeded: Machine, ready: Callable[..., Path], record_property: Callable[[str, object], None]
) -> None:
    """All processes of the run end at once, as with a closed terminal or no memory left; each run
    finds what the one before it left."""
    place = ready()
    demo = ("scripts/demo.sh", "--model", "tiny")
    for stage in STAGES:
        killed = seeded.start(*demo, cwd=place)
        seen = _until_seen(killed, stage)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        assert "error:" not in seen, f"before {stage!r}:\n{seen}"
    ran = seeded.run(*demo, "--down", cwd=place, timeout=1800)
    goes_well(ran)
    record_property("seconds", round(ran.seconds))


def _until_seen(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout
    seen = ""
    for line in process.stdout:
        seen += line
        if words in seen:
            return seen
    raise AssertionError(f"{words!r} was not reached:\n{seen}")
