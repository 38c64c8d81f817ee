"""Standbys on whole hosts: the last rank of the first engine is killed while clients ask. The tests
need the cluster that test_cluster.py brings up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import Push, Table
from tests.gpu.services import (
    CONTAINER,
    DENSE,
    MODEL,
    api_key,
    complete,
    fleet_file,
    starts,
    stop_services,
    used_mib,
)
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
    pytest.mark.usefixtures("two_in_a_host"),
]

CLIENTS = 4
PAIR, ALONE = "pair", "alone"
"""A group of two ranks on one host, and an 8B on one GPU of the other."""


@dataclass
class Clients:
    """Each asks for one token after the other, through the gateway."""

    api: str
    model: str
    key: str
    answers: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @contextmanager
    def asking(self) -> Iterator[None]:
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                try:
                    complete(self.api, self.model, self.key, tokens=1)
                    self.answers.append(time.monotonic())
                except (OSError, HTTPException) as error:
                    self.lost.append(str(error))
                    ended.wait(0.1)  # As a client that tries again

        threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            ended.set()
            for each in threads:
                each.join()

    def longest_gap_from(self, moment: float) -> float:
        times = sorted([moment, *(one for one in self.answers if one > moment)])
        return max((after - one for one, after in pairwise(times)), default=float("inf"))


def _service(operator: Operator, name: str) -> dict[str, Any]:
    services = operator.run("status", "--json").json["services"]
    found: dict[str, Any] = next(one for one in services if one["name"] == name)
    return found


def _has_standby(operator: Operator, name: str) -> bool:
    one = _service(operator, name)
    return _is_awake(one) and one["standby"] is not None and one["standby"]["sleep"]["asleep"]


def _standby_serves(operator: Operator, name: str) -> bool:
    standby = _service(operator, name)["standby"]
    return standby is not None and _is_awake(standby)


def _is_awake(engine: dict[str, Any]) -> bool:
    return engine["state"] == "ready" and not engine["sleep"]["asleep"]


@pytest.mark.takes(90)
def test_services_with_standbys_start(
    operator: Operator, push_shape: Push, table: Table, tmp_path: Path
) -> None:
    stop_services(operator)
    fleet: dict[str, dict[str, object]] = {
        PAIR: {"model": MODEL, "tp": 2, "on": "gpu1", "standby": True},
        ALONE: {"model": push_shape(DENSE), "tp": 1, "on": "gpu2", "standby": True},
    }
    ran = operator.ok("apply", fleet_file(tmp_path, fleet), "--yes", timeout=300)
    seconds = round(ran.seconds, 1)
    table.add("services with standbys", apply_seconds=seconds, starts=starts(operator))


@pytest.mark.takes(120)
@pytest.mark.parametrize("name", [PAIR, ALONE])
def test_a_standby_takes_over_from_a_killed_rank(
    name: str, operator: Operator, on_host: OnHost, table: Table
) -> None:
    """The standby starts while the first engine sleeps, which does so once nobody asks."""
    began = time.monotonic()
    try:
        until(lambda: _has_standby(operator, name), within=240, what="its standby sleeps")
    finally:
        seconds, one = round(time.monotonic() - began, 1), _service(operator, name)
        used = used_mib(on_host)
        table.add(f"{name} with a standby", waited_seconds=seconds, used_mib=used, service=one)

    clients = Clients(one["endpoint"], name, api_key(on_host))
    before = complete(clients.api, name, clients.key)
    with clients.asking():
        until(lambda: len(clients.answers) > 10 * CLIENTS, within=30, what="answers")
        rank = one["ranks"][-1]
        kill = f"docker exec {CONTAINER} kill -9 {rank['pid']}"
        killed = time.monotonic()
        assert on_host(rank["host"], kill).returncode == 0
        try:
            until(lambda: _standby_serves(operator, name), within=120, what="its standby serves")
            known = len(clients.answers)
            until(lambda: len(clients.answers) > known + CLIENTS, within=30, what="answers of it")
        finally:
            table.add(
                f"kill -9 of a rank, {name} with a standby",
                longest_without_an_answer_seconds=round(clients.longest_gap_from(killed), 2),
                requests=len(clients.answers) + len(clients.lost),
                lost=[*clients.lost],
                used_mib=used_mib(on_host),
                service=_service(operator, name),
            )
    assert complete(clients.api, name, clients.key) == before
    assert clients.lost == []
