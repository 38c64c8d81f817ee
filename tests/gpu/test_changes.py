"""Services that change while others serve: models on one GPU that start in turn, one that sleeps,
replicas that are restarted with other flags and moved away. The tests build on each other; they
need the cluster that test_cluster.py brings up."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import ON_CPUS, Push, Table
from tests.gpu.services import (
    DENSE,
    MODEL,
    again,
    api_key,
    complete,
    fleet_file,
    require_forecasts,
    starts,
    stop_services,
    used_mib,
)
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import SteadyLoad

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
    pytest.mark.usefixtures("two_ranks" if ON_CPUS else "two_in_a_host"),
]

RATE = 2.0 if ON_CPUS else 20.0
COPIES = ("--tp", "1", "--replicas", "2", "--port", "8000")
COPY: dict[str, object] = {"model": MODEL, "tp": 1, "replicas": 2, "port": 8000}
EAGER = {"enforce-eager": True}
OTHER = {"max-num-seqs": 128}
HALF = ("--gpu-share", "0.45", "--on", "gpu1")
ASLEEP = ("--tp", "1", "--on", "gpu2", "--idle", "20s")


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """The text that a service answered before it slept, by its name."""
    return {}


@pytest.mark.takes(165)
def test_models_that_share_a_gpu_start_in_turn(
    operator: Operator,
    push_shape: Push,
    on_host: OnHost,
    table: Table,
    tmp_path: Path,
    said: dict[str, str],
) -> None:
    """While others start on the other GPUs."""
    stop_services(operator)
    copies = {"copies": {**COPY, "flags": EAGER}}
    services, words = copies, dict[str, tuple[str, ...]]()
    if not ON_CPUS:
        shape = push_shape(DENSE)
        half: dict[str, object] = {"model": MODEL, "gpu_share": 0.45, "on": "gpu1"}
        sleeper: dict[str, object] = {"model": shape, "tp": 1, "on": "gpu2", "idle": "20s"}
        services = {
            "left": {**half, "port": 8001},
            "right": {**half, "port": 8002},
            "sleeper": {**sleeper, "port": 8003},
            **copies,
        }
        words = {"left": (MODEL, *HALF), "right": (MODEL, *HALF), "sleeper": (shape, *ASLEEP)}
    ran = operator.run("apply", fleet_file(tmp_path, services), "--yes", "--json", timeout=400)
    states = operator.run("status", "--json").json["services"]
    table.add(
        "models that share a GPU, in turn",
        apply_seconds=round(ran.seconds, 1),
        starts=starts(operator),
        failures={one["name"]: one["last_failure"] for one in states},
        restarts={one["name"]: one["restarts"] for one in states},
        used_mib=used_mib(on_host),
    )
    assert ran.status == 0, ran.text
    key = api_key(on_host)
    endpoints = {one["name"]: one["endpoint"] for one in states if one["name"] in words}
    said |= {name: complete(api, name, key) for name, api in endpoints.items()}
    require_forecasts(again(operator, words), table)
    assert [one["last_failure"] for one in states] == [""] * len(states)
    assert said.get("left") == said.get("right")


@pytest.mark.takes(130)
def test_other_flags_of_replicas_lose_no_request(
    operator: Operator, on_host: OnHost, table: Table
) -> None:
    load = SteadyLoad(operator, on_host, model="copies", rate=RATE)
    words = ("serve", MODEL, "--name", "copies", *COPIES, "--yes", "--json", "--")
    with load.during("other flags") as row:
        ran = operator.run(*words, "--enforce-eager", "--max-num-seqs", "128", timeout=400)
    table.add(
        "other flags of two replicas",
        seconds=round(ran.seconds, 1),
        status=ran.status,
        starts=starts(operator),
        load=row,
    )
    assert ran.status == 0, ran.text
    assert row["whole"] == row["sent"], row


@pytest.mark.takes(45)
def test_a_request_wakes_a_model_through_the_gateway(
    operator: Operator, on_host: OnHost, table: Table, said: dict[str, str]
) -> None:
    if ON_CPUS:
        pytest.skip("vLLM's sleep mode needs GPUs")

    def service() -> dict[str, Any]:
        services = operator.run("status", "--json").json["services"]
        found: dict[str, Any] = next(one for one in services if one["name"] == "sleeper")
        return found

    key, api = api_key(on_host), service()["endpoint"]
    for turn in range(2):
        took = until(lambda: service()["sleep"]["asleep"], within=90, what="it sleeps by itself")
        asleep, used = service()["sleep"], used_mib(on_host)
        began = time.monotonic()
        complete(api, "sleeper", key, tokens=1)
        seconds = time.monotonic() - began
        table.add(
            f"request to a model that sleeps, {turn + 1}",
            seconds=round(seconds, 2),
            waited_for_sleep_seconds=round(took, 1),
            sleep=asleep,
            used_mib=used,
        )
    assert complete(api, "sleeper", key) == said["sleeper"]


@pytest.mark.takes(100)
def test_draining_a_host_loses_no_request(
    operator: Operator, on_host: OnHost, table: Table, tmp_path: Path
) -> None:
    copies = {"copies": {**COPY, "flags": {**EAGER, **OTHER}}}
    operator.ok("apply", fleet_file(tmp_path, copies), "--prune", "--yes")
    load = SteadyLoad(operator, on_host, model="copies", rate=RATE)
    with load.during("drain") as row:
        ran = operator.run("drain", "gpu2", "--yes", "--json", timeout=400)
    states = operator.run("status", "--json").json["services"]
    table.add(
        "drain of a host",
        seconds=round(ran.seconds, 1),
        status=ran.status,
        on={one["name"]: one["host"] for one in states},
        load=row,
    )
    operator.ok("undrain", "gpu2")
    assert ran.status == 0, ran.text
    assert {one["host"] for one in states} == {"gpu1"}
    assert row["whole"] == row["sent"], row
