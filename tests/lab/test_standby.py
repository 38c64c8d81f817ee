"""A second engine sleeps on the same devices as the first one and takes over from it, with a group
over both hosts. vLLM on CPUs follows the orders to sleep and to wake, and gives no memory back.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import SteadyLoad, status

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SERVE = ("serve", "/data/models/tiny", "--tp", "2", "--standby", "--yes")
BOTH = ("ready", "asleep")


def engines(operator: Operator) -> tuple[str, str]:
    """What the first engine and the standby do."""
    (service,) = status(operator)["services"]
    standby = service["standby"] or {"state": "absent", "sleep": {"asleep": False}}
    first = "asleep" if service["sleep"]["asleep"] else service["state"]
    return first, "asleep" if standby["sleep"]["asleep"] else standby["state"]


@pytest.fixture(scope="module")
def standby(operator: Operator, used_hosts: str) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)
    operator.ok(*SERVE, timeout=1000)
    until(lambda: engines(operator) == BOTH, within=300, what="the standby sleeps")


@pytest.mark.usefixtures("standby")
def test_served_again_it_changes_nothing(operator: Operator) -> None:
    assert operator.ok(*SERVE, "--json").json["changed"] is False
    assert engines(operator) == BOTH


@pytest.mark.usefixtures("standby")
def test_a_rank_is_killed_and_the_standby_answers(
    operator: Operator, on_host: OnHost, record_property: Callable[[str, object], None]
) -> None:
    with SteadyLoad(operator, on_host).during("a rank of the other host killed") as row:
        assert on_host("gpu2", "pkill -KILL -o -f RayWorkerProc").returncode == 0
        until(lambda: engines(operator)[1] == "ready", within=60, what="the standby serves")
    record_property("a rank killed, with a standby", row)
    assert row["failed"] == 0, row
    assert row["longest_seconds"] < 30, row
    until(lambda: engines(operator) == BOTH, within=300, what="the first engine serves again")


@pytest.mark.usefixtures("standby")
def test_a_standby_that_is_killed_in_its_sleep_costs_no_request(
    operator: Operator, on_host: OnHost
) -> None:
    """The first engine was started last."""
    with SteadyLoad(operator, on_host).during("a rank of the standby killed") as row:
        assert on_host("gpu2", "pkill -KILL -o -f RayWorkerProc").returncode == 0
        until(lambda: engines(operator)[1] != "asleep", within=60, what="status tells it")
        assert engines(operator)[0] == "ready"
    assert (row["failed"], row["broken"]) == (0, 0), row
    until(lambda: engines(operator) == BOTH, within=300, what="there is a standby again")


@pytest.mark.usefixtures("standby")
def test_stop_ends_both(operator: Operator, on_host: OnHost) -> None:
    operator.ok("stop", "tiny", "--yes")
    assert status(operator)["services"] == []
    for host in ("gpu1", "gpu2"):
        assert on_host(host, "pgrep -f 'vllm serve|RayWorkerProc'").stdout == ""
