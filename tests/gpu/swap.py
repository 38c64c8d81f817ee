"""Two services that swap with vLLM itself, under the real supervisor, Ray and gateway.

    python -m tests.gpu.swap MODEL [--tp 2] [--swaps 200] [--clients 5] [--ports 11900]
        [-- FLAG...]

MODEL is a directory. Both services serve it. Requests go to one service, and then to the other: a
swap each. Prints a JSON object a line: seconds from a request to its first token after a swap, lost
requests, and what the GPUs, the host and the supervisor's process hold.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median

from clusterctl.node.rank_placement import PER_WORKER, SHARES
from tests.fakes.node_bench import await_value
from tests.fakes.sleep_contract import Sleeper
from tests.gpu.one_node import OneNode, read_arguments, turn_flags
from tests.gpu.sleep import gpu_gib, host_gib, say

PAIR = ("a", "b")
START_LIMIT, TURN_LIMIT = 600.0, 60.0
OFTEN = 20
"""Swaps from one line to the next."""
TOKENS = 24


@dataclass(frozen=True)
class FirstToken:
    """The answer to a request of one token: its whole answer is its first token."""

    seconds: float
    status: int  # 0: the connection failed


@dataclass
class Swaps:
    """What clients saw so far."""

    clients: dict[str, Sleeper]
    texts: dict[str, str]
    answers: list[FirstToken] = field(default_factory=list)
    done: int = 0
    woken_before: int = 0  # By the journal, which an earlier run may have begun
    other_texts: int = 0  # Answers that differed from the first one of that service

    def swap(self, name: str, number: int) -> None:
        """Send requests to the service that sleeps, all at once, and compare its text."""
        client = self.clients[name]
        asked = [client.clients.submit(first_token, client) for _ in range(number)]
        self.answers += [each.result() for each in asked]
        self.done += 1
        status, content = client.ask(TOKENS)
        text = content["choices"][0]["text"] if status == 200 else f"status {status}"
        self.other_texts += text != self.texts[name]

    def say(self, node: OneNode) -> None:
        good = sorted(one.seconds for one in self.answers if one.status == 200)
        lost = [one.status for one in self.answers if one.status != 200]
        seconds = {}
        if good:
            high = good[ceil(0.95 * len(good)) - 1]
            seconds = {"median": median(good), "p95": high, "max": good[-1]}
        say(
            "swaps",
            swaps=self.done,
            woken=times_woken(node) - self.woken_before,
            first_token_s={name: round(value, 2) for name, value in seconds.items()},
            requests=len(self.answers),
            lost=len(lost),
            statuses=sorted(set(lost)),
            other_texts=self.other_texts,
            gpu_gib=gpu_gib(),
            host_gib=host_gib(),
            threads=threading.active_count(),
            descriptors=len([*Path("/proc/self/fd").iterdir()]),
        )


def first_token(client: Sleeper) -> FirstToken:
    began = time.monotonic()
    try:
        status, _ = client.ask(1)
    except (OSError, http.client.HTTPException, ValueError):
        status = 0
    return FirstToken(time.monotonic() - began, status)


def times_woken(node: OneNode) -> int:
    """How often one of them was woken, by the supervisor's journal."""
    entries = map(json.loads, node.paths.journal.read_text().splitlines())
    return sum(one["event"] == "awake" for one in entries)


def phases(node: OneNode) -> list[str]:
    states = [node.shown(name) for name in PAIR]
    return ["asleep" if one and one.sleep.asleep else one.state if one else "" for one in states]


def start(node: OneNode, model: str, tp: int, flags: list[str]) -> dict[str, Sleeper]:
    """Declare both services; return clients of theirs."""
    clients = {}
    turns: list[dict[str, object]] = [{"swap": True}, {"swap_with": PAIR[0]}]
    for number, (name, share, turn) in enumerate(zip(PAIR, SHARES, turns, strict=True)):
        env = {PER_WORKER: share}
        document = node.service(name, model, turn_flags(flags), tp, number, env=env, **turn)
        clients[name] = node.declare(document, number)
    return clients


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swaps", type=int, default=200)
    parser.add_argument("--clients", type=int, default=5)
    asked, flags = read_arguments(parser)

    node = OneNode(asked.tp, asked.ports)
    clients = start(node, asked.model, asked.tp, flags)
    began = time.monotonic()
    with node.running():
        await_value(lambda: phases(node) == ["asleep", "ready"], "both services", START_LIMIT)
        for name in PAIR:
            await_value(partial(node.admitted, name), f"the gateway to know {name}")
        took = {one.name: one.ready_seconds for one in map(node.shown, PAIR) if one}
        figures = {"gpu_gib": gpu_gib(), "host_gib": host_gib()}
        say("both", after_s=round(time.monotonic() - began), ready_s=took, **figures)

        texts = {name: clients[name].text(TOKENS) for name in PAIR}
        swaps = Swaps(clients, texts, woken_before=times_woken(node))
        began = time.monotonic()
        for number in range(asked.swaps):
            swaps.swap(PAIR[number % 2], asked.clients)
            if swaps.done % OFTEN == 0 or swaps.done == asked.swaps:
                swaps.say(node)
        await_value(lambda: sorted(phases(node)) == ["asleep", "ready"], "rest", TURN_LIMIT)
        for state in map(node.shown, PAIR):
            assert state
            kept = {"restarts": state.restarts, "last_failure": state.last_failure}
            slept = {"refused": state.sleep.refused, "parked_gib": state.sleep.host_gib}
            say("service", name=state.name, wakes_in=state.sleep.wakes_in, **kept, **slept)
        say("done", seconds=round(time.monotonic() - began))


if __name__ == "__main__":
    main()
