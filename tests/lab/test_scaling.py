"""A replica on each host, one of which sleeps while it is not needed. vLLM on CPUs follows the
orders to sleep and to wake, and gives no memory back.
"""

from __future__ import annotations

import os

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

# One place in a batch: requests soon wait.
SERVE = ("serve", "/data/models/tiny", "--name", "chat", "--replicas", "1..2", "--idle", "10s")
FLAGS = ("--", "--max-num-seqs", "1", "--scheduling-policy", "priority")


def doing(operator: Operator) -> dict[str, str]:
    """What each replica does."""
    return {
        each["name"]: "asleep" if each["sleep"]["asleep"] else each["state"]
        for each in status(operator)["services"]
    }


def answered(operator: Operator) -> dict[int, int]:
    """How many requests each replica answered."""
    return {each["replica"]: each["requests"] for each in status(operator)["gateway"]["members"]}


def journal(on_host: OnHost) -> str:
    return on_host("gpu1", "cat /var/log/clusterctl/lab/journal.jsonl").stdout


@pytest.fixture(scope="module")
def chat(operator: Operator, used_hosts: str) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)
    operator.ok(*SERVE, "--yes", *FLAGS, timeout=1000)


@pytest.mark.usefixtures("chat")
def test_the_one_that_is_not_needed_falls_asleep(operator: Operator) -> None:
    until(
        lambda: doing(operator) == {"chat": "ready", "chat@2": "asleep"},
        within=60,
        what="the second one sleeps",
    )
    assert operator.ok(*SERVE, "--yes", "--json", *FLAGS).json["changed"] is False


@pytest.mark.usefixtures("chat")
def test_it_wakes_while_requests_wait_and_sleeps_again(operator: Operator, on_host: OnHost) -> None:
    before = answered(operator)
    with SteadyLoad(operator, on_host, model="chat", rate=6.0).during("twice the load") as row:
        until(
            lambda: answered(operator)[2] > before[2] + 5, within=60, what="answers of the second"
        )
        assert "uses 2 of 2 replicas" in journal(on_host)
    assert (row["failed"], row["broken"]) == (0, 0), row

    until(
        lambda: "uses 1 of 2 replicas" in journal(on_host),
        within=120,
        what="the first one suffices",
    )
    until(
        lambda: doing(operator) == {"chat": "ready", "chat@2": "asleep"},
        within=60,
        what="the second one sleeps again",
    )


@pytest.mark.usefixtures("chat")
def test_the_one_that_sleeps_takes_over_from_one_that_dies(
    operator: Operator, on_host: OnHost
) -> None:
    first = {each["name"]: each for each in status(operator)["services"]}["chat"]
    with SteadyLoad(operator, on_host, model="chat", rate=0.5).during("a killed replica") as row:
        assert on_host(first["host"], "pkill -KILL -o -f RayWorkerProc").returncode == 0
        until(
            lambda: doing(operator) == {"chat": "ready", "chat@2": "ready"},
            within=300,
            what="both are ready",
        )
    assert row["failed"] == 0, row
    assert row["broken"] <= 1, row  # A stream that had begun cannot be sent again
