"""What clients of two replicas lose while hosts, engines, flags and keys change, counted request by
request (`pytest -rP` prints the rows). The tests build on each other, in the order of this file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from clusterctl.lab import faults
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

GATEWAY = "http://10.77.0.11:8000"
SERVE = ("serve", "/data/models/tiny", "--tp", "1", "--yes")
RATE = 2.0
CALM = 5.0
"""Seconds of load before and after each change, in which requests are answered."""
GATEWAY_BACK = 2.0
"""Seconds."""
NODE = "clusterctl-lab"
ENGINE = "VLLM::EngineCor"


def status(operator: Operator) -> Any:
    return operator.run("status", "--json").json


def admitted(operator: Operator) -> list[str]:
    """The hosts whose replicas get requests."""
    gateway = status(operator)["gateway"] or {"members": []}
    return [member["host"] for member in gateway["members"] if member["admitted"]]


class Load:
    """A steady rate of requests, half of them streamed, and what became of them."""

    def __init__(self, operator: Operator, on_host: OnHost) -> None:
        self._operator = operator
        self._key = on_host("gpu1", "cat /etc/clusterctl/lab/api.key").stdout.strip()

    @contextmanager
    def during(self, what: str) -> Iterator[dict[str, Any]]:
        """Send requests meanwhile; afterwards the result has a row of the table."""
        found: dict[str, Any] = {"what": what}
        before = status(self._operator)["gateway"]["retried"]
        words = ["--rate", str(RATE), "--seconds", "3600", "--streamed", "0.5", "--tokens", "24"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.load", GATEWAY, "tiny", *words],
            env={**os.environ, "CLUSTERCTL_API_KEY": self._key},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            time.sleep(CALM)
            yield found
            time.sleep(CALM)
            process.send_signal(signal.SIGTERM)
            found |= json.loads(process.communicate(timeout=300)[0])
        finally:
            process.kill()
            process.communicate()
        again = status(self._operator)["gateway"]["retried"] - before
        found["retried"] = max(again, 0)  # The counts of the last 2 s are lost with the head
        line = ("sent", "whole", "retried", "failed", "broken", "longest_seconds", "why")
        print(f"{what}: " + ", ".join(f"{name} {found[name]}" for name in line))  # noqa: T201


@pytest.fixture(scope="module")
def cluster(operator: Operator, used_hosts: str) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)
    operator.ok(*SERVE, "--replicas", "2", "--", "--max-model-len", "512", timeout=1500)


def keys(operator: Operator, _: OnHost) -> None:
    for number in range(5):
        operator.ok("key", "create", f"user{number}")
        operator.ok("key", "revoke", f"user{number}")


def flags(operator: Operator, _: OnHost) -> None:
    operator.ok(*SERVE, "--", "--max-model-len", "1024", timeout=1500)


def broken_flag(operator: Operator, _: OnHost) -> None:
    words = ("--max-model-len", "1024", "--attention-backend", "NONE")
    ran = operator.run(*SERVE, "--", *words, timeout=1500)
    assert "serves its previous version again" in ran.stderr, ran.text


def drained(operator: Operator, _: OnHost) -> None:
    operator.ok("drain", "gpu2")
    operator.ok("undrain", "gpu2")
    flags = ("--", "--max-model-len", "1024")
    operator.ok(*SERVE, "--replicas", "max", *flags, timeout=1500)


def on_the_worker(command: str) -> Callable[[Operator, OnHost], None]:
    """Return a fault of the worker, which is awaited until the gateway's list shows it."""

    def fault(operator: Operator, on_host: OnHost) -> None:
        assert on_host("gpu2", command).returncode == 0
        until(lambda: admitted(operator) == ["gpu1"], within=60, what="the replica is out")

    return fault


def power_loss(operator: Operator, _: OnHost) -> None:
    faults.power_off("gpu2")
    until(lambda: admitted(operator) == ["gpu1"], within=60, what="the replica is out")
    faults.power_on("gpu2")


def gateway_killed(_: Operator, on_host: OnHost) -> None:
    assert on_host("gpu1", "pkill -KILL -x haproxy").returncode == 0


def head_killed(_: Operator, on_host: OnHost) -> None:
    assert on_host("gpu1", RESTART).returncode == 0


RESTART = f"docker kill {NODE} && docker start {NODE}"
NOTHING, BEGUN, IN_FLIGHT, OUTAGE = "nothing", "begun streams", "in flight", "outage"

CHANGES = [
    ("nothing happens", lambda *_: time.sleep(15), NOTHING),
    ("5 keys created and revoked", keys, NOTHING),
    ("other flags", flags, NOTHING),
    ("a broken flag, undone", broken_flag, NOTHING),
    ("the worker drained, undrained, filled again", drained, NOTHING),
    ("kill -9 of an engine", on_the_worker(f"pkill -KILL -f {ENGINE}"), BEGUN),
    ("SIGSTOP of an engine", on_the_worker(f"pkill -STOP -f {ENGINE}"), BEGUN),
    ("the worker's node container killed, started", on_the_worker(RESTART), BEGUN),
    ("power loss of the worker, on again", power_loss, BEGUN),
    ("kill -9 of the gateway", gateway_killed, IN_FLIGHT),
    ("the head's node container killed, started", head_killed, OUTAGE),
]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("what", "change", "loses"), CHANGES, ids=[each[0] for each in CHANGES])
def test_requests_lost_while(
    operator: Operator,
    on_host: OnHost,
    record_property: Callable[[str, object], None],
    what: str,
    change: Callable[[Operator, OnHost], None],
    loses: str,
) -> None:
    load = Load(operator, on_host)
    with load.during(what) as row:
        change(operator, on_host)
        until(
            lambda: sorted(admitted(operator)) == ["gpu1", "gpu2"],
            within=600,
            what="both replicas get requests",
        )
    record_property(what, row)
    assert row["sent"] >= 2 * CALM * RATE * 0.8, f"not a steady load: {row}"
    assert row["whole"], row
    if loses == NOTHING:
        assert row["failed"] == row["broken"] == 0, row
    elif loses == BEGUN:
        assert row["failed"] == 0, row
        assert set(row["why"]) <= {"RemoteProtocolError", "no end of the stream", "an error event"}
    elif loses == IN_FLIGHT:
        assert row["lost_within_seconds"] <= GATEWAY_BACK + row["longest_seconds"], row
