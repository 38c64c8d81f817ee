"""What starts take, with vLLM itself under the real supervisor and Ray, and whether the same tokens
come out.

    python -m tests.gpu.starts MODEL [--tp 2] [--cold 2] [--warm 3] [--ahead] [--ports 11900]
        [-- FLAG...]

MODEL is a directory. A cold start finds no compiled code: caches are removed before. Warm starts
follow a change of the service's document and `kill -9` of a rank, in turn; with --ahead only the
latter, once a process that has imported vLLM waits. Prints a JSON object a
line. Variables of the environment reach the service, such as VLLM_WORKER_MULTIPROC_METHOD=fork.
Caches below OUT stay for another run; its first start is then warm without --cold.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass, replace
from itertools import cycle, islice

from clusterctl.node.documents import ServiceDocument, ServiceState
from clusterctl.node.import_ahead import IMPORT_AHEAD, OFF, ON
from clusterctl.node.sleeping import SleepControl
from clusterctl.node.timing import Timing
from tests.fakes.node_bench import await_value
from tests.fakes.sleep_contract import Sleeper
from tests.gpu.one_node import HOST, OneNode, read_arguments
from tests.gpu.sleep import KEY, gpu_gib, host_gib, say

NAME = "m"
IMPORTS = 30.0  # Seconds in which vLLM is imported
LIMIT = 500.0
TOKENS = 24
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
FIRST, COLD, CHANGED, KILLED = "first", "cold", "changed", "killed"

TELLING = {
    "weights_s": re.compile(r"Loading weights took ([\d.]+) s"),
    "model_s": re.compile(r"Model loading took .*? ([\d.]+) s"),
    "compiling_s": re.compile(r"torch\.compile took ([\d.]+) s"),
    "engine_s": re.compile(r"init engine .*? took ([\d.]+) s"),
    "spawned_anyway": re.compile(r"must use the (`spawn`)"),
}
"""What vLLM itself says of a start."""


@dataclass
class Starts:
    """Starts of one service, one after the other."""

    node: OneNode
    document: ServiceDocument
    client: Sleeper
    number: int = 0
    process: int = 0  # Of the last one
    read: int = 0  # Characters of the log

    def start(self, kind: str) -> None:
        """Have it start in this way, and tell what that took."""
        if kind == COLD:
            self._clear()
        self.number += 1
        self.read = len(self._log())
        if kind == KILLED:
            if self.document.env[IMPORT_AHEAD] == ON:
                time.sleep(IMPORTS)
            ranks = await_value(lambda: self._shown().ranks, "its ranks")
            began = time.monotonic()
            os.kill(ranks[-1].pid, signal.SIGKILL)
        else:
            began = time.monotonic()
            self.document = replace(self.document, fingerprint=str(self.number))
            self.node.declare(self.document)

        await_value(self._has_started, f"start {self.number}, {kind}", LIMIT)
        seconds, state = time.monotonic() - began, self._shown()
        self.process = state.pid
        say(
            "start",
            number=self.number,
            kind=kind,
            method=os.environ.get(METHOD, ""),
            ready_seconds=round(state.ready_seconds, 1),
            until_ready_s=round(seconds, 1),
            stages=state.start,
            vllm=self._told(),
            text=self.client.text(TOKENS),
            failure=state.last_failure,
            gpu_gib=gpu_gib(),
            host_gib=host_gib(),
        )

    def _clear(self) -> None:
        """Stop it, if it runs, and remove what earlier starts have compiled."""
        if self.number:
            self.node.remove(NAME)
            await_value(lambda: self.node.shown(NAME) is None, "it to stop")
        for cache in self.node.caches.iterdir():
            shutil.rmtree(cache)

    def _shown(self) -> ServiceState:
        return await_value(lambda: self.node.shown(NAME), "its state")

    def _has_started(self) -> bool:
        state = self.node.shown(NAME)
        if state is None or state.state != "ready" or state.pid == self.process:
            return False
        return state.fingerprint == self.document.fingerprint

    def _log(self) -> str:
        log = self.node.paths.log(NAME)
        return log.read_text(errors="replace") if log.exists() else ""

    def _told(self) -> dict[str, list[str]]:
        """What vLLM logged about this start; each rank has its own line."""
        log = self._log()[self.read :]
        found = {name: pattern.findall(log) for name, pattern in TELLING.items()}
        return {name: values for name, values in found.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cold", type=int, default=2)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--ahead", action="store_true", help="vLLM is imported ahead of a restart")
    asked, flags = read_arguments(parser)

    node = OneNode(asked.tp, asked.ports)
    env = {IMPORT_AHEAD: ON if asked.ahead else OFF}
    document = node.service(NAME, asked.model, flags, asked.tp, env=env)
    direct = Sleeper(SleepControl(), HOST, document.port, NAME, KEY)
    starts = Starts(node, document, direct)
    colds = [COLD] * asked.cold or [FIRST]
    kinds = [KILLED] if asked.ahead else [CHANGED, KILLED]
    with node.running(Timing(import_ahead=1.0)):
        for kind in [*colds, *islice(cycle(kinds), asked.warm)]:
            starts.start(kind)


if __name__ == "__main__":
    main()
