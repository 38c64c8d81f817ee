"""A steady load on the gateway of the lab while something happens to the replicas behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.lab.cluster import Operator
from tests.lab.conftest import OnHost

GATEWAY = "http://10.77.0.11:8000"
RATE = 2.0
CALM = 5.0
"""Seconds of load before and after each change, in which requests are answered."""


def status(operator: Operator) -> Any:
    return operator.run("status", "--json").json


def admitted(operator: Operator) -> list[str]:
    """The hosts whose replicas get requests."""
    gateway = status(operator)["gateway"] or {"members": []}
    return [member["host"] for member in gateway["members"] if member["admitted"]]


class SteadyLoad:
    """A steady rate of requests, half of them streamed, and what became of them."""

    def __init__(
        self,
        operator: Operator,
        on_host: OnHost,
        url: str = GATEWAY,
        other: str = "",
        *,
        model: str = "tiny",
        rate: float = RATE,
    ) -> None:
        """`other`: of a gateway to which clients send what `url` does not answer."""
        self._operator, self._url, self._other = operator, url, other
        self._model, self._rate = model, str(rate)
        self._key = on_host("gpu1", "cat /etc/clusterctl/lab/api.key").stdout.strip()

    @contextmanager
    def during(self, what: str) -> Iterator[dict[str, Any]]:
        """Send requests meanwhile; afterwards the result has a row of the table."""
        found: dict[str, Any] = {"what": what}
        before = status(self._operator)["gateway"]["retried"]
        words = ["--rate", self._rate, "--seconds", "3600", "--streamed", "0.5", "--tokens", "24"]
        words += ["--other", self._other] if self._other else []
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.load", self._url, self._model, *words],
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
        line = (
            "sent",
            "whole",
            "retried",
            "failed",
            "broken",
            "elsewhere",
            "longest_seconds",
            "why",
        )
        print(f"{what}: " + ", ".join(f"{name} {found[name]}" for name in line))  # noqa: T201
