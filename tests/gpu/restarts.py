"""Restarts of vLLM itself, with a process that has imported it and without one, in turns, under the
real supervisor and Ray.

    python -m tests.gpu.restarts MODEL [--tp 2] [--times 5] [--ports 11900] [-- FLAG...]

MODEL is a directory. Prints a JSON object a line: seconds from kill -9 of the API server until it
is ready, by stages, and from its start until it has read its arguments, and the memory of the
process that waits. Variables of the environment reach the service.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.node.documents import ServiceDocument, ServiceState
from clusterctl.node.import_ahead import IMPORT_AHEAD, OFF, ON
from clusterctl.node.sleeping import SleepControl
from clusterctl.node.timing import Timing
from tests.fakes.node_bench import await_value
from tests.fakes.sleep_contract import Sleeper
from tests.gpu.one_node import HOST, OneNode, read_arguments
from tests.gpu.sleep import KEY, gpu_gib, say

NAME = "m"
LIMIT = 600.0
TOKENS = 24
ARGUMENTS = "non-default args"  # vLLM logs them once its API server has imported it
STILL = 3.0  # Seconds without CPU time after which the process that waits has imported all


@dataclass
class Restarts:
    """Restarts of one service, one after the other."""

    node: OneNode
    document: ServiceDocument
    client: Sleeper

    def declare(self, ahead: str, number: int) -> None:
        """Have the service started anew, with or without a process for its next start."""
        env = {**self.document.env, IMPORT_AHEAD: ahead}
        document = replace(self.document, env=env, fingerprint=f"{number}{ahead}")
        self.node.declare(document)

        def ready() -> ServiceState | None:
            state = self.node.shown(NAME)
            same = state and state.fingerprint == document.fingerprint
            return state if same and state and state.state == "ready" else None

        await_value(ready, "the service", LIMIT)

    def restart(self, ahead: str) -> None:
        """Kill the API server, and say what it took until it is ready again."""
        memory = memory_of_waiting(self.document.port) if ahead == ON else {}
        before = self.client.text(TOKENS)
        service = await_value(lambda: self.node.shown(NAME), "the service")
        killed, lines = time.time(), self._log().count(ARGUMENTS)
        os.kill(service.pid, signal.SIGKILL)
        await_value(lambda: self._log().count(ARGUMENTS) > lines, "it to read its arguments", LIMIT)
        read = time.time()

        def ready() -> dict[str, Any] | None:
            return next((each for each in self._events(killed) if each["event"] == "ready"), None)

        again = await_value(ready, "it to be ready again", LIMIT)
        started = next(each for each in self._events(killed) if each["event"] == "starting")
        cpu = cpu_seconds(int(started["text"].partition("pid ")[2].split(",")[0]))
        say(
            "restart",
            ahead=ahead,
            used="has imported" in started["text"],
            seconds=round(again["time"] - killed, 1),
            since_start=round(again["time"] - started["time"], 1),
            arguments_after=round(read - started["time"], 1),
            cpu_of_api_server=round(cpu - memory.get("cpu_s", 0.0), 1),
            ready=again["text"],
            same_tokens=self.client.text(TOKENS) == before,
            load=Path("/proc/loadavg").read_text().split()[0],
            **memory,
        )

    def _log(self) -> str:
        return self.node.paths.log(NAME).read_text(errors="replace")

    def _events(self, since: float) -> list[dict[str, Any]]:
        """What the journal says of the service since a moment, in seconds of the clock."""
        lines = self.node.paths.journal.read_text().rpartition("\n")[0].splitlines()
        entries = [json.loads(line) for line in lines]
        return [each for each in entries if each["subject"] == NAME and each["time"] > since]


def memory_of_waiting(port: int) -> dict[str, Any]:
    """MiB of the process that waits, once it has imported vLLM, the seconds of CPU that it took,
    and the memory in use on each GPU meanwhile."""
    pid = await_value(lambda: waiting(port), "a process that imports vLLM")
    last, since = cpu_seconds(pid), time.monotonic()
    while time.monotonic() - since < STILL:
        time.sleep(0.5)
        if (now := cpu_seconds(pid)) != last:
            last, since = now, time.monotonic()
    rows = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in rows)}
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    named = {"rss_mib": kib["Rss"], "pss_mib": kib["Pss"], "private_mib": private}
    threads = len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    mib = {name: round(size / 1024) for name, size in named.items()}
    devices = sorted(nvidia_files(pid))
    return {**mib, "cpu_s": last, "threads": threads, "devices": devices, "gpu_gib": gpu_gib()}


def nvidia_files(pid: int) -> set[str]:
    """Devices of NVIDIA that a process has open."""
    links = (os.readlink(link) for link in Path("/proc", str(pid), "fd").iterdir())  # noqa: PTH115
    return {name for name in links if name.startswith("/dev/nvidia")}


def cpu_seconds(pid: int) -> float:
    stat = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def waiting(port: int) -> int:
    """The process that waits for the service of a port; it has another name once it is used."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"clusterctl.node.import_ahead" in words and str(port).encode() in words:
            return int(entry.parent.name)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    asked, flags = read_arguments(parser)

    node = OneNode(asked.tp, asked.ports)
    document = node.service(NAME, asked.model, flags, asked.tp)
    restarts = Restarts(node, document, Sleeper(SleepControl(), HOST, document.port, NAME, KEY))
    with node.running(Timing(import_ahead=1.0)):
        for number in range(asked.times):
            for ahead in (OFF, ON) if number % 2 else (ON, OFF):
                restarts.declare(ahead, number)
                restarts.restart(ahead)
    say("left", waiting=waiting(document.port))


if __name__ == "__main__":
    main()
