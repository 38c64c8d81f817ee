"""A replica that sleeps, with vLLM itself: its contract, and what falling asleep and waking take.

    python -m tests.gpu.sleep MODEL [--tp 2] [--cycles 20] [-- FLAG...]

MODEL is a directory. vLLM and Ray are this machine's; Ray is started here. Prints a JSON object a
line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clusterctl.node.attempt import Attempt
from clusterctl.node.documents import ServiceDocument
from clusterctl.node.files import NodePaths
from clusterctl.node.sleeping import WAKE
from clusterctl.node.timing import Timing
from tests.fakes.node_bench import await_value
from tests.fakes.sleep_contract import (
    Sleeper,
    keeps_what_it_says,
    loses_none_in_cycles,
    sleeps_with_no_request_running,
)

PORT, KEY, START_LIMIT = 11900, "key-of-the-test", 400.0


def say(what: str, **figures: Any) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)  # noqa: T201 - for who called it


def gpu_gib() -> list[float]:
    """Memory in use on each GPU."""
    argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    except OSError:
        return []
    return [round(int(line) / 1024, 2) for line in ran.stdout.split()]


def host_gib() -> float:
    """Memory of this machine that is in use or pinned."""
    words = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    kib = int(words["MemTotal"].split()[0]) - int(words["MemAvailable"].split()[0])
    return round(kib / 2**20, 2)


def start(model: str, tp: int, flags: list[str], port: int = PORT) -> tuple[Attempt, Sleeper]:
    argv = ["vllm", "serve", model, "--served-model-name", "m", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--tensor-parallel-size", str(tp), *flags]
    document = ServiceDocument(
        name=f"sleep-{port}", model=model, served_name="m", argv=argv, env={}, host="127.0.0.1",
        port=port, tensor_parallel=tp, pipeline_parallel=1, gpus=tp, fingerprint="1", idle=3600.0,
    )  # fmt: skip
    paths = NodePaths("sleep", Path(os.environ.get("OUT") or tempfile.mkdtemp()) / "node")
    paths.logs.mkdir(parents=True, exist_ok=True)
    env = {"RAY_DEDUP_LOGS": "0", "RAY_ADDRESS": "auto"}
    attempt = Attempt(document, env, paths, Timing(), frozenset(), KEY)
    assert attempt.sleeping
    sleeper = Sleeper(attempt.sleeping, "127.0.0.1", port, "m", KEY)
    try:
        await_value(
            lambda: attempt.reading.ready or attempt.child.exit_status() is not None,
            "vLLM",
            START_LIMIT,
        )
        assert attempt.reading.ready, attempt.last_lines()
    except AssertionError:
        attempt.kill()
        raise
    spent = attempt.spent(time.monotonic())
    say("ready", port=port, stages=spent, gpu_gib=gpu_gib(), host_gib=host_gib())
    return attempt, sleeper


def sleeps_and_wakes(sleeper: Sleeper, times: int) -> None:
    text = sleeper.text(24)
    for _ in range(times):
        asleep = sleeper.put_to_sleep()
        time.sleep(1)
        memory = {"gpu_gib": gpu_gib(), "host_gib": host_gib()}
        began = time.monotonic()
        asked = sleeper.ask_later(1)  # Its whole answer is its first token
        await_value(lambda: sleeper.control.report.waiting == 1, "the request")
        awake = sleeper.order(WAKE)
        asked.result(120)
        first, same = time.monotonic() - began, sleeper.text(24) == text
        figures = {"asleep_s": asleep, "awake_s": awake, "request_to_first_token_s": first}
        say("sleep", **{name: round(value, 2) for name, value in figures.items()}, **memory)
        assert same, "the same tokens after it woke"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--backend", default="ray")
    asked, flags = parser.parse_known_args([one for one in sys.argv[1:] if one != "--"])
    if asked.backend == "ray":
        ray = ["ray", "start", "--head", "--port", "6399", "--disable-usage-stats"]
        subprocess.run([*ray, "--include-dashboard=false"], check=True, stdout=sys.stderr)
    flags += ["--distributed-executor-backend", asked.backend]
    attempt, sleeper = start(asked.model, asked.tp, flags)
    try:
        sleeps_and_wakes(sleeper, 5)
        keeps_what_it_says(sleeper)
        sleeps_with_no_request_running(sleeper, 2000)
        say("contract", kept=True)
        for done in range(20, asked.cycles + 1, 20):
            began = time.monotonic()
            loses_none_in_cycles(sleeper, 20)
            figures = {
                "requests": 5 * done,
                "lost": 0,
                "gpu_gib": gpu_gib(),
                "host_gib": host_gib(),
            }
            say("cycles", cycles=done, seconds=round(time.monotonic() - began, 1), **figures)
    finally:
        attempt.kill()


if __name__ == "__main__":
    main()
