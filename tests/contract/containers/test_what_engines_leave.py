"""The engines of these tests leave the machine as they found it: what a later test meets is not
what an earlier one made."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.lab.cgroups import hierarchies
from tests.contract.containers.dockerd import Engine, dockerd, running

pytestmark = pytest.mark.dockerd

PLACES = ("/run/docker", "/run/containerd", "/var/lib/docker", "/sys/class/net/docker0")
# Forwarding is what the machine had, whatever an engine of somebody else's made of it.
NOT_FORWARDING = 'echo 0 > /proc/sys/net/ipv4/ip_forward && touch "$0" && exec "$@"'


def traces() -> dict[str, bool]:
    groups = [f"{hierarchy}/docker" for hierarchy in hierarchies()]
    return {place: Path(place).exists() for place in (*PLACES, *groups)}


def forwarding(pid: int) -> str:
    read = ["nsenter", f"--target={pid}", "--net", "cat", "/proc/sys/net/ipv4/ip_forward"]
    return subprocess.run(read, capture_output=True, text=True, check=True).stdout.strip()


def test_an_engine_leaves_no_trace(
    import_busybox: Callable[[Engine, str], str], tmp_path: Path
) -> None:
    before = traces()
    started = tmp_path / "started"

    def in_a_network_of_its_own(home: Path) -> list[str]:
        return ["unshare", "--net", "sh", "-c", NOT_FORWARDING, str(started), *dockerd(home)]

    with running("alone", in_a_network_of_its_own) as engine:
        image = import_busybox(engine, "clusterctl-test/left:1")
        engine.docker("run", "--rm", "--network", "host", image, "true")
        assert started.exists()
        daemon = int((engine.home / "docker.pid").read_text())
        assert forwarding(daemon) == "0"
        name = engine.home.name
    assert traces() == before
    assert not [hierarchy for hierarchy in hierarchies() if (hierarchy / name).exists()]
