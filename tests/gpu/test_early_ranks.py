"""Ranks whose processes start early, as is the default, beside ranks that start when vLLM asks Ray
for them: what a start takes by stages, with and without what earlier ones have compiled, and the
same tokens. The tests need the cluster that test_cluster.py brings up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.commands.bench_start import CACHES
from clusterctl.inventory.load import load
from clusterctl.node.documents import cache_dir
from clusterctl.node.prestart import OFF, RANK_VARIABLES
from tests.gpu.conftest import Table
from tests.gpu.services import MODEL, NAME, api_key, complete, fleet_file, starts, stop_services
from tests.lab.cluster import Operator
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
    pytest.mark.usefixtures("two_ranks"),
]

LATE = {"env": {RANK_VARIABLES: OFF}}
"""Of a service whose ranks start when vLLM asks."""

Start = Callable[..., dict[str, str]]


@pytest.fixture
def start(
    inventory: str, operator: Operator, on_host: OnHost, table: Table, tmp_path: Path
) -> Start:
    """Starts services at once, and returns the text that each of them answers."""

    def run(what: str, services: dict[str, dict[str, object]], *, cold: bool) -> dict[str, str]:
        stop_services(operator)
        if cold:
            caches = " ".join(f"{cache_dir('lab')}/{name}" for name in CACHES.values())
            for host in load(Path(inventory)).hosts:
                assert on_host(host.name, f"rm -rf {caches}").returncode == 0
        ran = operator.ok("apply", fleet_file(tmp_path, services), "--yes", timeout=400)
        found = operator.run("status", "--json").json["services"]
        key = api_key(on_host)
        texts = {one["name"]: complete(one["endpoint"], one["name"], key) for one in found}
        table.add(
            f"{what}, {'cold' if cold else 'warm'}",
            apply_seconds=round(ran.seconds, 1),
            starts=starts(operator),
            texts=texts,
        )
        return texts

    return run


@pytest.mark.takes(125)
@pytest.mark.parametrize(
    ("early", "cold"),
    [("gpu1", True), ("gpu1", False), ("gpu2", False), ("gpu2", True)],
    ids=["gpu1-cold", "gpu1-warm", "gpu2-warm", "gpu2-cold"],
)
def test_a_group_in_each_host_one_with_early_ranks(
    early: str, cold: bool, gpus: int, hosts: int, start: Start, table: Table
) -> None:
    """Both start at once, so that nothing else differs."""
    late = "gpu2" if early == "gpu1" else "gpu1"
    entry: dict[str, object] = {"model": MODEL, "tp": gpus // hosts}
    services = {early: {**entry, "on": early}, late: {**entry, "on": late, **LATE}}
    texts = start(f"a group in each host, ranks early on {early}", services, cold=cold)
    assert texts[early] == texts[late]


@pytest.mark.takes(115)
@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
@pytest.mark.parametrize("when", ["late", "early"])
def test_a_group_over_both_hosts(
    when: str, cold: bool, gpus: int, start: Start, answered: set[str]
) -> None:
    entry: dict[str, object] = {"model": MODEL, "tp": gpus}
    service = {**entry, **LATE} if when == "late" else entry
    answered |= set(start(f"TP {gpus}, {when} ranks", {NAME: service}, cold=cold).values())
    assert len(answered) == 1, answered


@pytest.fixture(scope="session")
def answered() -> set[str]:
    """What groups over both hosts said."""
    return set()
