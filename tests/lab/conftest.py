"""Access to the hosts of the lab, for tests that need whole ones."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.lab import lifecycle
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.paths import LabPaths, lab_paths
from tests.lab.cluster import Operator, quiet

OnHost = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def lab() -> Iterator[LabPaths]:
    yield lab_paths()
    lifecycle.down(say=quiet)


@pytest.fixture(scope="module")
def inventory(lab: LabPaths) -> Iterator[str]:
    """Two bare hosts, and the file that names them."""
    lifecycle.down(say=quiet)
    made = lifecycle.up(2, say=quiet)
    yield str(made.inventory)
    lifecycle.down(say=quiet)


@pytest.fixture(scope="module")
def used_hosts(lab: LabPaths, operator: Operator) -> Iterator[str]:
    """The inventory of two hosts, bare, or after a `down` that left engine and image there, for
    which a bootstrap takes minutes."""
    used = lab.host("gpu1") / "used"
    if not used.exists():
        lifecycle.down(say=quiet)
    lifecycle.up(2, say=quiet)
    yield str(lab.inventory)
    operator.run("down", "-i", str(lab.inventory), "--yes")
    used.touch()


PYTHON = (
    "apt-get update -qq && DEBIAN_FRONTEND=noninteractive "
    "apt-get install -qq --no-install-recommends python3 >/dev/null"
)


@pytest.fixture(scope="module")
def bare(lab: LabPaths, on_host: OnHost) -> Iterator[Path]:
    """The inventory of two hosts that have Python and no engine, where no image was made."""
    lifecycle.down(say=quiet)
    made = lifecycle.up(2, image=False, say=quiet)
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda name: on_host(name, PYTHON, timeout=600), ("gpu1", "gpu2")):
            assert done.returncode == 0, done.stderr
    yield made.inventory
    lifecycle.down(say=quiet)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(tmp_path_factory.mktemp("operator"))


@pytest.fixture(scope="session")
def on_host(lab: LabPaths) -> OnHost:
    """Runs a shell command on a host by OpenSSH's own client, whose opinion on keys counts."""

    def run(
        name: str, command: str, *, user: str = "root", stdin: str = "", timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        options = {
            "IdentityFile": lab.identity,
            "UserKnownHostsFile": lab.known_hosts,
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": 30,
        }
        return subprocess.run(
            [
                "ssh",
                *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
                f"{user}@{host_by_name(name).address}",
                command,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
