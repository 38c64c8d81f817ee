"""Restarts of vLLM itself, with a process that has imported it and without one, in turns, under the
real supervisor and Ray.

    python -m tests.gpu.restarts MODEL [--cpu] [--tp 2] [--times 5] [-- FLAG...]

MODEL is a directory. vLLM and Ray are this machine's. Prints a JSON object a line: seconds from
kill -9 of the API server until it is ready, by stages, and from its start until it has read its
arguments, and the memory of the process that waits.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.node.documents import (
    ExpectedNode,
    NodeDocument,
    NodeState,
    ServiceDocument,
    ServiceState,
    from_json,
    to_json,
)
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.import_ahead import IMPORT_AHEAD, OFF, ON
from clusterctl.node.sleeping import SleepControl
from clusterctl.node.supervisor import Supervisor
from clusterctl.node.timing import Timing
from tests.fakes.node_bench import await_value
from tests.fakes.sleep_contract import Sleeper
from tests.gpu.sleep import KEY, say
from tests.gpu.standby import HOST

PORT, GCS = 11940, 6449
START_LIMIT = 600.0
ARGUMENTS = "non-default args"  # vLLM logs them once its API server has imported it
STILL = 3.0  # Seconds without CPU time after which the process that waits has imported all
ROOT = Path(__file__).parents[2]


class Node:
    """This machine as a node with one service, and its supervisor."""

    def __init__(self, root: Path, model: str, tp: int, accelerator: str, flags: list[str]) -> None:
        ray = ["ray", "start", "--head", "--block", "--node-ip-address", HOST, "--port", str(GCS)]
        ray += ["--node-name", "a", "--disable-usage-stats", "--include-dashboard=false"]
        ray += ["--num-gpus", str(tp)]
        argv = ["vllm", "serve", model, "--served-model-name", "m", "--host", HOST]
        argv += ["--port", str(PORT), "--tensor-parallel-size", str(tp)]
        argv += ["--distributed-executor-backend", "ray", *flags]
        node = NodeDocument(
            cluster="restarts", host="a", role="head", node_ip=HOST, head_ip=HOST, ray_argv=ray,
            env={
                "RAY_ADDRESS": f"{HOST}:{GCS}", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0",
                "RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0",
                "RAY_preload_python_modules": "clusterctl.node.prestarted",
                "PYTHONPATH": str(ROOT), "VLLM_HOST_IP": HOST,
                **accelerator_named(accelerator).environment,
            },
            expected=[ExpectedNode("a", HOST, tp)], gcs_port=GCS,
        )  # fmt: skip
        self._service = ServiceDocument(
            name="m", model=model, served_name="m", argv=argv, env={}, host=HOST, port=PORT,
            tensor_parallel=tp, pipeline_parallel=1, gpus=tp, fingerprint="", shutdown_timeout=5.0,
            node_ips=[HOST] * tp,
        )  # fmt: skip
        self.paths = NodePaths("restarts", root)
        for directory in (self.paths.services, self.paths.logs):
            directory.mkdir(parents=True, exist_ok=True)
        for secret in (self.paths.api_key, self.paths.ray_token):
            secret.write_text(KEY)
            secret.chmod(0o600)
        self.paths.node_document.write_text(to_json(node))
        journal = Journal(self.paths.journal, "a", io.StringIO())
        timing = Timing(import_ahead=1.0)
        self.supervisor = Supervisor(self.paths, node, timing, journal)
        self.client = Sleeper(SleepControl(), HOST, PORT, "m", KEY)

    def declare(self, ahead: str, number: int) -> None:
        """Have the service started anew, with or without a process for its next start."""
        document = replace(self._service, env={IMPORT_AHEAD: ahead}, fingerprint=f"{number}{ahead}")
        file = self.paths.services / "m.json"
        fresh = file.with_suffix(".new")
        fresh.write_text(to_json(document))
        fresh.replace(file)

        def ready() -> bool:
            state = self.service()
            same = state is not None and state.fingerprint == document.fingerprint
            return same and state is not None and state.state == "ready"

        await_value(ready, "the service", START_LIMIT)

    def service(self) -> ServiceState | None:
        try:
            state = from_json(NodeState, self.paths.state.read_text())
        except OSError:
            return None
        return next(iter(state.services), None)

    def log(self) -> str:
        return self.paths.log("m").read_text()

    def events(self, since: float) -> list[dict[str, Any]]:
        """What the journal says of the service since a moment, in seconds of the clock."""
        lines = self.paths.journal.read_text().rpartition("\n")[0].splitlines()
        entries = [json.loads(line) for line in lines]
        return [each for each in entries if each["subject"] == "m" and each["time"] > since]

    def restart(self, ahead: str) -> None:
        """Kill the API server, and say what it took until it is ready again."""
        memory = memory_of_waiting() if ahead == ON else {}
        before = self.client.text(24)
        service = await_value(self.service, "the service")
        killed, lines = time.time(), self.log().count(ARGUMENTS)
        os.kill(service.pid, signal.SIGKILL)
        await_value(lambda: self.log().count(ARGUMENTS) > lines, "it to read its arguments")
        read = time.time()

        def ready() -> dict[str, Any] | None:
            return next((each for each in self.events(killed) if each["event"] == "ready"), None)

        again = await_value(ready, "it to be ready again", START_LIMIT)
        started = next(each for each in self.events(killed) if each["event"] == "starting")
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
            same_tokens=self.client.text(24) == before,
            load=Path("/proc/loadavg").read_text().split()[0],
            **memory,
        )


def memory_of_waiting() -> dict[str, Any]:
    """MiB of the process that waits, once it has imported vLLM, and the seconds of CPU it took."""
    pid = await_value(waiting, "a process that imports vLLM")

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
    return {**mib, "cpu_s": last, "threads": threads}


def cpu_seconds(pid: int) -> float:
    stat = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def waiting() -> int:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"clusterctl.node.import_ahead" in entry.read_bytes():
                return int(entry.parent.name)
        except OSError:
            continue
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--times", type=int, default=5)
    asked, flags = parser.parse_known_args([one for one in sys.argv[1:] if one != "--"])

    root = Path(os.environ.get("OUT") or tempfile.mkdtemp()) / "node"
    node = Node(root, asked.model, asked.tp, "cpu" if asked.cpu else "nvidia", flags)
    running = threading.Thread(target=node.supervisor.run)
    running.start()
    try:
        for number in range(asked.times):
            for ahead in (OFF, ON) if number % 2 else (ON, OFF):
                node.declare(ahead, number)
                node.restart(ahead)
    finally:
        say("journal", lines=node.paths.journal.read_text().splitlines()[-60:])
        node.supervisor.stop()
        running.join()
        say("left", waiting=waiting())


if __name__ == "__main__":
    main()
