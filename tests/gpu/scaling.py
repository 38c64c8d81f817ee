"""Replicas that sleep while they are not needed with vLLM itself, under the real supervisor, Ray
and gateway: a load that triples.

    python -m tests.gpu.scaling MODEL [--replicas 2] [--rate 8] [--ttft 1] [--ports 11900]
        [--share 0.5] [--before 20] [--during 60] [-- FLAG...]

MODEL is a directory; each replica has one GPU, or a share of it (then also give
--gpu-memory-utilization). Prints a JSON object a line: how long after the load
tripled the 99th percentile of the time to the first token was within the target again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from math import ceil

from clusterctl.node.documents import Member, MembersDocument, ServiceDocument, replica_name
from clusterctl.node.rank_placement import PER_WORKER
from tests.bench.load import Load, LoadReport, run_load
from tests.fakes.node_bench import await_value
from tests.gpu.one_node import HOST, OneNode, read_arguments, turn_flags
from tests.gpu.sleep import KEY, gpu_gib, host_gib, say

NAME = "m"
START_LIMIT, SLEEP_LIMIT = 600.0, 300.0
IDLE = 15.0
TOKENS = 128


def documents(
    node: OneNode, model: str, number: int, share: float, flags: list[str]
) -> list[ServiceDocument]:
    found = []
    env = {PER_WORKER: f"{share:g}"} if share < 1 else {}
    for replica in range(1, number + 1):
        one = node.service(NAME, model, flags, 1, replica, env=env, idle=IDLE, least=1)
        found.append(replace(one, name=replica_name(NAME, replica), replica=replica))
    return found


def doing(node: OneNode, number: int) -> list[str]:
    states = [node.shown(replica_name(NAME, replica)) for replica in range(1, number + 1)]
    return ["asleep" if one and one.sleep.asleep else one.state if one else "" for one in states]


def late_until(report: LoadReport, ttft: float) -> float:
    """Return from which second on 99 of 100 requests had their first token within the target."""
    last = int(max(one.at for one in report.outcomes))
    seconds = [
        [one.first for one in report.outcomes if second <= one.at < second + 1]
        for second in range(last + 1)
    ]
    late = [
        second
        for second, times in enumerate(seconds)
        if sum(time > ttft for time in times) > len(times) / 100
    ]
    return float(late[-1] + 1) if late else 0.0


def say_report(what: str, node: OneNode, number: int, report: LoadReport, ttft: float) -> None:
    firsts = sorted(one.first for one in report.outcomes if one.kind == "whole")
    say(
        what,
        requests=len(report.outcomes),
        lost=report.lost,
        first_token_s={
            "median": round(firsts[len(firsts) // 2], 3) if firsts else None,
            "p99": round(firsts[int(len(firsts) * 0.99)], 3) if firsts else None,
        },
        within_target_from_s=late_until(report, ttft),
        replicas=doing(node, number),
        gpu_gib=gpu_gib(),
        host_gib=host_gib(),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of a GPU, for each replica")
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--ttft", type=float, default=1.0)
    parser.add_argument("--before", type=float, default=20.0, help="seconds of the load")
    parser.add_argument("--during", type=float, default=60.0, help="seconds of three times as much")
    asked, flags = read_arguments(parser)
    number, ttft = asked.replicas, asked.ttft

    node = OneNode(ceil(number * asked.share), asked.ports)
    replicas = documents(node, asked.model, number, asked.share, turn_flags(flags))
    members = [Member(one.replica, "a", HOST, one.port) for one in replicas]
    door = asked.ports
    listed = MembersDocument(NAME, [NAME], door, members, listen=HOST, least=1, ttft=ttft)
    node.write(listed, *replicas)
    load = Load(f"http://{HOST}:{door}", NAME, asked.rate, asked.before, KEY, 1.0, TOKENS)
    began = time.monotonic()
    with node.running():
        await_value(lambda: doing(node, number)[0] == "ready", "the first one", START_LIMIT)
        await_value(
            lambda: doing(node, number)[1:] == ["asleep"] * (number - 1), "rest", START_LIMIT
        )
        say("asleep", after_s=round(time.monotonic() - began), gpu_gib=gpu_gib(), host=host_gib())

        say_report("before", node, number, run_load(load), ttft)
        more = replace(load, rate=3 * asked.rate, seconds=asked.during)
        say_report("three times the load", node, number, run_load(more), ttft)
        quiet = time.monotonic()
        say_report("after", node, number, run_load(load), ttft)
        await_value(
            lambda: doing(node, number)[1:] == ["asleep"] * (number - 1), "sleep", SLEEP_LIMIT
        )
        say("asleep again", after_s=round(time.monotonic() - quiet))
        entries = map(json.loads, node.paths.journal.read_text().splitlines())
        say("events", lines=[one for one in entries if one["event"] in ("scales", "awake")])


if __name__ == "__main__":
    main()
