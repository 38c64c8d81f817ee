"""Two services on the same devices of both hosts, of which one is awake at a time. vLLM on CPUs
follows the orders to sleep and to wake, and gives no memory back.
"""

from __future__ import annotations

import os
from typing import Any

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

CHAT = ("serve", "/data/models/tiny", "--name", "chat", "--tp", "2", "--swap", "--yes")
CODER = ("serve", "/data/models/tiny", "--name", "coder", "--swap-with", "chat", "--yes")
DOORS = {"chat": "http://10.77.0.11:8000", "coder": "http://10.77.0.11:8001"}


def services(operator: Operator) -> dict[str, Any]:
    return {each["name"]: each for each in status(operator)["services"]}


def doing(operator: Operator) -> dict[str, str]:
    """What each engine does."""
    found = services(operator).items()
    return {name: "asleep" if one["sleep"]["asleep"] else one["state"] for name, one in found}


@pytest.fixture(scope="module")
def pair(operator: Operator, used_hosts: str) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)
    operator.ok(*CHAT, timeout=1000)
    operator.ok(*CODER, timeout=1000)


@pytest.mark.usefixtures("pair")
def test_both_are_served_with_ranks_on_the_same_hosts(operator: Operator) -> None:
    found = services(operator)
    assert [rank["host"] for rank in found["chat"]["ranks"]] == ["gpu1", "gpu2"]
    assert [rank["host"] for rank in found["coder"]["ranks"]] == ["gpu1", "gpu2"]
    assert (found["chat"]["swaps_with"], found["coder"]["swaps_with"]) == ("coder", "chat")
    assert set(doing(operator).values()) == {"ready", "asleep"}


@pytest.mark.usefixtures("pair")
def test_served_again_nothing_changes(operator: Operator) -> None:
    for serve in (CHAT, CODER):
        assert operator.ok(*serve, "--json").json["changed"] is False


@pytest.mark.usefixtures("pair")
def test_requests_to_both_lose_nothing(operator: Operator, on_host: OnHost) -> None:
    loads = {
        name: SteadyLoad(operator, on_host, url, model=name, rate=0.5)
        for name, url in DOORS.items()
    }
    with loads["chat"].during("swaps") as one, loads["coder"].during("swaps") as two:
        until(
            lambda: doing(operator) == {"chat": "asleep", "coder": "ready"},
            within=120,
            what="coder has its turn",
        )
        until(
            lambda: doing(operator) == {"chat": "ready", "coder": "asleep"},
            within=120,
            what="chat has its turn",
        )
    for row in (one, two):
        assert (row["failed"], row["broken"]) == (0, 0), row


@pytest.mark.usefixtures("pair")
def test_a_rank_is_killed_and_both_serve_again(operator: Operator, on_host: OnHost) -> None:
    before = services(operator)
    assert on_host("gpu2", "pkill -KILL -o -f RayWorkerProc").returncode == 0
    until(
        lambda: any(
            one["restarts"] > before[name]["restarts"] for name, one in services(operator).items()
        ),
        within=60,
        what="status tells it",
    )
    until(
        lambda: set(doing(operator).values()) == {"ready", "asleep"},
        within=400,
        what="both are there again",
    )


@pytest.mark.usefixtures("pair")
def test_the_second_one_stops_first(operator: Operator) -> None:
    refused = operator.run("stop", "chat", "--yes")
    assert refused.status != 0
    assert "clusterctl stop coder" in refused.stderr
    operator.ok("stop", "coder", "--yes")
    operator.ok("stop", "chat", "--yes")
    assert status(operator)["services"] == []
