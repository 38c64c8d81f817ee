"""Whole hosts that share this machine's GPUs, and the table of what was measured on them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cli.init import IMAGE
from clusterctl.inventory.load import load
from clusterctl.lab import lifecycle
from clusterctl.lab.gpus import MODULE_VERSION, machine_gpus
from clusterctl.lab.requirements import LabUnavailable
from tests.gpu.shapes import write_shape
from tests.lab.cluster import Operator, quiet
from tests.lab.conftest import OnHost, lab, on_host

__all__ = ["lab", "on_host"]

ON_CPUS = os.environ.get("CLUSTERCTL_GPU_TESTS") == "cpu"
"""Rehearsal: the lab's own hosts and its tiny model, on a machine without GPUs."""

MINUTES = float(os.environ.get("CLUSTERCTL_GPU_MINUTES", "inf"))
"""How long the machine is there. Tests that say what they take are skipped if they would not end in
this time, so that those without can still run."""
LAST = 40.0
"""Seconds for the last test, which takes the cluster down."""
BEGAN = time.monotonic()

# nvidia-smi makes links in /dev/char itself: it runs before each look, so that they are in both.
# Of /etc/cdi and /etc/docker, files count: the engine's package may leave its directory.
WHAT_PURGE_REMOVES = """\
nvidia-smi >/dev/null 2>&1
dpkg-query -W -f '${Package}\\n'
ls -d /etc/clusterctl /opt/clusterctl /var/lib/clusterctl /var/log/clusterctl 2>/dev/null
find /dev/char -lname '*nvidia*'
find /etc/cdi /etc/docker /etc/systemd/system /etc/udev/rules.d /etc/sysctl.d ! -type d 2>/dev/null
true
"""


@dataclass
class Table:
    """Rows of figures, kept in a file from the first one on. `versions` holds for all of them. A
    file that is there already goes on, as after a machine that was taken away: what it has is not
    measured again."""

    file: Path
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.file.exists():
            kept = json.loads(self.file.read_text())
            self.versions, self.rows = kept["versions"], kept["rows"]
            self.outcomes = kept.get("outcomes", [])
        self._earlier = [*self.rows]

    def has(self, what: str, figure: str) -> bool:
        """Whether an earlier run measured it."""
        return any(row["what"] == what and figure in row for row in self._earlier)

    def add(self, what: str, **figures: Any) -> None:
        self.rows.append({"what": what, **figures})
        self._keep()

    def ended(self, test: str, **outcome: Any) -> None:
        """Keep how a test ended, and why: a machine may be gone before pytest says it."""
        self.outcomes.append({"test": test, **outcome})
        self._keep()

    def _keep(self) -> None:
        kept = {"versions": self.versions, "rows": self.rows, "outcomes": self.outcomes}
        self.file.write_text(json.dumps(kept, indent=1))

    def lines(self) -> list[str]:
        rows = [dict(row) for row in self.rows]
        said = [", ".join(f"{name} {version}" for name, version in self.versions.items())]
        return said + [
            f"{r.pop('what')}: " + ", ".join(f"{k} {v}" for k, v in r.items()) for r in rows
        ]


TABLE = Table(Path(os.environ.get("OUT", ".")) / "gpu-table.json")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/gpu/" in report.nodeid and (report.when == "call" or not report.passed):
        seconds = round(report.duration, 1)
        why = report.longreprtext[-4000:]
        TABLE.ended(report.nodeid, outcome=report.outcome, seconds=seconds, why=why)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TABLE.rows:
        terminalreporter.section(f"measured, also in {TABLE.file}")
        for line in TABLE.lines():
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def table() -> Table:
    return TABLE


@pytest.fixture(autouse=True)
def in_time(request: pytest.FixtureRequest) -> None:
    takes = request.node.get_closest_marker("takes")
    if takes and time.monotonic() - BEGAN + takes.args[0] + LAST > 60 * MINUTES:
        pytest.skip(f"takes {takes.args[0]} s, more than are left of {MINUTES:g} minutes")


@pytest.fixture(scope="session")
def gpus() -> int:
    """How many GPUs this machine has."""
    try:
        return 2 if ON_CPUS else len(machine_gpus())
    except LabUnavailable as error:
        pytest.skip(error.summary)


@dataclass(frozen=True)
class GpuLab:
    """Bare hosts that share the GPUs. Their image is CLUSTERCTL_GPU_IMAGE, in the archive
    CLUSTERCTL_GPU_IMAGE_ARCHIVE; the defaults are those of `lab up --gpus`."""

    def up(self, hosts: int, link_rate: str | None = None) -> str:
        """Return the inventory's path."""
        archive = os.environ.get("CLUSTERCTL_GPU_IMAGE_ARCHIVE")
        image = lifecycle.GpuImage(
            os.environ.get("CLUSTERCTL_GPU_IMAGE", IMAGE), Path(archive) if archive else None
        )
        made = lifecycle.up(
            hosts, gpu_image=None if ON_CPUS else image, link_rate=link_rate, say=quiet
        )
        assert made.missing_image is None, f"docker save {image.name} -o {made.missing_image}"
        if multicast := os.environ.get("NCCL_NVLS_ENABLE"):  # As this machine has it, for `fit` too
            with made.inventory.open("a") as file:
                file.write(f'env: {{NCCL_NVLS_ENABLE: "{multicast}"}}\n')
        return str(made.inventory)


@pytest.fixture(scope="session")
def gpu_lab(gpus: int) -> Iterator[GpuLab]:
    lifecycle.down(say=quiet)
    if MODULE_VERSION.exists():
        TABLE.versions["driver"] = MODULE_VERSION.read_text().strip()
    yield GpuLab()
    lifecycle.down(say=quiet)


@pytest.fixture(scope="session")
def hosts(gpus: int) -> int:
    """Two hosts share the GPUs, where there are two; each may have several."""
    return min(gpus, 2)


@pytest.fixture(scope="session")
def inventory(gpu_lab: GpuLab, hosts: int) -> str:
    return gpu_lab.up(hosts)


@pytest.fixture(scope="session")
def as_found(inventory: str, on_host: OnHost) -> list[str]:
    """What the hosts have before the first bootstrap."""
    return state_of_hosts(inventory, on_host)


def state_of_hosts(inventory: str, on_host: OnHost) -> list[str]:
    """A line for each thing: what differs is shown by itself."""
    return [
        f"{host.name}: {line}"
        for host in load(Path(inventory)).hosts
        for line in on_host(host.name, WHAT_PURGE_REMOVES).stdout.splitlines()
    ]


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(tmp_path_factory.mktemp("operator"))


@pytest.fixture
def two_ranks(hosts: int) -> None:
    if hosts < 2:
        pytest.skip("two ranks need two GPUs, and this machine has one")


@pytest.fixture
def two_in_a_host(gpus: int, hosts: int) -> None:
    if ON_CPUS or gpus < 2 * hosts:
        pytest.skip("two GPUs of one host need four, as hosts share them")


Push = Callable[[str], str]


@pytest.fixture(scope="session")
def push_shape(
    operator: Operator, inventory: str, tmp_path_factory: pytest.TempPathFactory
) -> Push:
    """Puts a model of the catalogue on the hosts, its shape without weights; returns its path."""

    def run(alias: str) -> str:
        directory = tmp_path_factory.mktemp("models") / f"{alias}-shape"
        write_shape(alias, directory)
        operator.ok("model", "push", str(directory), "-i", inventory)
        return f"/data/models/{directory.name}"

    return run
