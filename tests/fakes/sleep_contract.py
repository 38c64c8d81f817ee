"""What is relied on of a replica that sleeps: of vLLM on GPUs, and of the stand-in for it."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from clusterctl.node.gateway_config import CANARY
from clusterctl.node.sleeping import SLEEP, WAKE, SleepControl
from tests.fakes.node_bench import await_value


@dataclass
class Sleeper:
    """A replica, what orders it to sleep, and clients of its API."""

    control: SleepControl
    host: str
    port: int
    model: str
    key: str
    clients: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(32))

    def ask(self, tokens: int = 8, *, key: str = "", **headers: str) -> tuple[int, Any]:
        """Status and answer of a greedy completion."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        asked = {"model": self.model, "prompt": "Hello", "max_tokens": tokens, "temperature": 0}
        asked["ignore_eos"] = True
        words = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"}
        # Both: an answer that ends with its connection keeps the socket after that is closed
        with closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(asked), words | headers)
            with connection.getresponse() as answer:
                return answer.status, json.loads(answer.read())

    def text(self, tokens: int = 8) -> str:
        status, content = self.ask(tokens)
        assert status == 200, content
        return str(content["choices"][0]["text"])

    def ask_later(self, tokens: int = 8) -> Future[str]:
        return self.clients.submit(self.text, tokens)

    def canary(self) -> tuple[int, Any]:
        return self.ask(4, **{CANARY: "1"})

    def order(self, word: str) -> float:
        """Seconds until the order was dealt with."""
        began = time.monotonic()
        self.control.order(word, began)
        await_value(lambda: not self.control.pending, f"{word} to be followed")
        assert self.control.report.error == ""
        return time.monotonic() - began

    def await_idle(self) -> None:
        """A client may have its answer before the server has counted it."""
        await_value(lambda: not self.control.report.busy, "it to be idle")

    def put_to_sleep(self) -> float:
        self.await_idle()
        seconds = self.order(SLEEP)
        while not self.control.report.asleep:  # A check ran in that moment
            seconds = self.order(SLEEP)
        return seconds


def keeps_what_it_says(sleeper: Sleeper) -> None:
    control, before = sleeper.control, sleeper.text()

    sleeper.put_to_sleep()
    assert control.report.asleep
    assert sleeper.canary() == (503, {"asleep": True}), "proves that it is there, wakes nothing"
    status, _ = sleeper.ask(key="another")
    assert (status, control.report.waiting) == (401, 0), "a stranger wakes nothing"

    waits = [sleeper.ask_later() for _ in range(8)]
    await_value(lambda: control.report.waiting == 8, "requests to wait")
    sleeper.order(WAKE)
    assert all(each.result(60) for each in waits)
    assert sleeper.text() == before  # Alone: a batch may round otherwise
    assert not sleeper.control.report.asleep
    assert sleeper.canary()[0] == 200


def sleeps_with_no_request_running(sleeper: Sleeper, tokens: int) -> None:
    """`tokens`: of a request that takes longer than an order."""
    sleeper.await_idle()
    runs = sleeper.ask_later(tokens)
    await_value(lambda: sleeper.control.report.busy, "it to be busy")
    sleeper.order(SLEEP)
    assert not sleeper.control.report.asleep
    runs.result(120)


def loses_none_in_cycles(sleeper: Sleeper, cycles: int) -> None:
    before = sleeper.text()
    for _ in range(cycles):
        sleeper.put_to_sleep()
        asked = [sleeper.ask_later() for _ in range(5)]
        await_value(lambda: sleeper.control.report.waiting == 5, "requests to wait")
        sleeper.order(WAKE)
        assert all(each.result(60) for each in asked)
    assert sleeper.text() == before
    assert sleeper.control.report.refused == 0
