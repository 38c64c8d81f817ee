"""Supervisors and a real Ray: forming, dying, coming back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from clusterctl.node.contract import breaches
from clusterctl.node.documents import NodeState, ServiceDocument, ServiceState
from clusterctl.node.evidence import AskedEvidence
from clusterctl.ray_cluster.contract import await_formed
from clusterctl.ray_cluster.nodes import expected_nodes
from tests.contract.ray.conftest import TwoNodes
from tests.fakes.node_bench import PROGRAMS, await_value

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]
pytest.importorskip("ray")

FORMED = 180.0
"""Seconds; on two busy cores Ray takes 10 to 30."""

SERVICE = ServiceDocument(
    name="chat", model="tiny", served_name="tiny",
    argv=[sys.executable, str(PROGRAMS / "ranks_in_ray.py"), "21900", "2", "127.0.0.2"],
    env={}, host="127.0.0.2", port=21900, tensor_parallel=2, pipeline_parallel=1, gpus=2,
    fingerprint="1", ready_timeout=180, shutdown_timeout=5,
)  # fmt: skip


def formed(nodes: TwoNodes) -> NodeState:
    return await_formed(expected_nodes(nodes.topology), nodes.head.state, FORMED)


def await_ready(nodes: TwoNodes, restarts: int = 0) -> ServiceState:
    def look() -> ServiceState | None:
        state = nodes.head.state()
        services = state.services if state else []
        ready = [s for s in services if s.state == "ready" and s.restarts >= restarts]
        return ready[0] if ready and len(ready[0].ranks) == 2 else None

    return await_value(look, "the service", FORMED)


def alive_ids(nodes: TwoNodes) -> dict[str, str]:
    state = nodes.head.state()
    return {node.name: node.node_id for node in state.nodes if node.alive} if state else {}


def priorities_of_actors() -> set[int]:
    """The niceness of all actors of our nodes. Each node has a PID namespace of its own, and other
    tests have a Ray of their own."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that has just ended
            title = (process / "cmdline").read_text("utf-8", "replace")
            ours = b"RAY_worker_niceness=0" in (process / "environ").read_bytes().split(b"\0")
            if ours and title.startswith("ray::") and not title.startswith("ray::IDLE"):
                found.add(os.getpriority(os.PRIO_PROCESS, int(process.name)))
    return found


def test_two_nodes_form_serve_and_recover(
    two_nodes: TwoNodes, record_property: Callable[[str, object], None]
) -> None:
    nodes = two_nodes
    nodes.worker.start()  # before its head: it waits
    nodes.head.start()
    state = formed(nodes)
    assert {node.ray_version for node in state.nodes} == {state.ray_version} != {""}
    nodes.head.declare(SERVICE)

    ready = await_ready(nodes)
    assert [(rank.rank, rank.host) for rank in ready.ranks] == [(0, "head"), (1, "worker")]
    assert priorities_of_actors() == {os.getpriority(os.PRIO_PROCESS, 0)}

    asked = AskedEvidence("20261122-chat", time.time(), "chat", "stalled", ready.ranks)
    nodes.head.paths.asked.write_text(json.dumps(asdict(asked)))
    began = time.monotonic()
    await_value(lambda: list(nodes.worker.paths.logs.glob("evidence-20*")), "evidence", 60)
    record_property("the worker's evidence after", time.monotonic() - began)

    began = time.monotonic()
    old = alive_ids(nodes)["worker"]
    nodes.worker.kill_raylet()
    await_value(lambda: alive_ids(nodes).get("worker", old) != old, "the worker again", FORMED)
    record_property("worker back after", time.monotonic() - began)
    await_ready(nodes, restarts=1)
    record_property("serves again after", time.monotonic() - began)

    began = time.monotonic()
    nodes.head.pull_the_plug()
    nodes.head.paths.state.unlink()
    nodes.head.start()
    await_ready(nodes)
    record_property("serves after the head's power loss", time.monotonic() - began)

    assert nodes.worker.shut_down() == 0
    assert nodes.head.shut_down() == 0


def seconds_until_dead(nodes: TwoNodes) -> float:
    """How long the worker hangs until the head knows; it is back at the end."""
    nodes.worker.kill_raylet(signal.SIGSTOP)
    began = time.monotonic()
    await_value(lambda: "worker" not in alive_ids(nodes), "the dead node", 120)
    took = time.monotonic() - began
    nodes.worker.kill_raylet(signal.SIGCONT)
    formed(nodes)
    return took


def test_a_node_that_hangs_is_dead_within_20_seconds(two_nodes: TwoNodes) -> None:
    """And some more, for a test's machine that is busy: once in two times."""
    nodes = two_nodes
    nodes.head.start()
    nodes.worker.start()
    formed(nodes)

    assert any(seconds_until_dead(nodes) < 25 for _ in range(2))


def test_the_head_stops_calling_a_node_that_left(two_nodes: TwoNodes) -> None:
    """What goes on calling there does so less and less often, every two minutes at last, and a node
    that comes back to its address is taken for dead before the next call (Ray 2.60)."""
    nodes = two_nodes
    nodes.head.start()
    nodes.worker.start()
    formed(nodes)
    nodes.head.declare(SERVICE)
    await_ready(nodes)

    nodes.worker.pull_the_plug()
    await_value(lambda: "worker" not in alive_ids(nodes), "the dead node", 120)
    began = time.monotonic()
    calls: list[float] = []
    with socket.create_server(
        (nodes.worker.node.node_ip, nodes.worker.ports.node_manager)
    ) as raylet:
        while (left := began + 60 - time.monotonic()) > 0:
            raylet.settimeout(left)
            with contextlib.suppress(TimeoutError):
                raylet.accept()[0].close()
                calls.append(time.monotonic() - began)

    assert [call for call in calls if call > 25] == []


def test_a_node_without_the_token_is_not_let_in(two_nodes: TwoNodes) -> None:
    nodes = two_nodes
    (nodes.worker.paths.config / "ray.token").write_text("0" * 64)
    nodes.head.start()
    nodes.worker.start()

    def refused() -> bool:
        state = nodes.worker.state()
        if state is None or state.ray != "backing-off":
            return False
        return "InvalidAuthToken" in state.ray_detail

    def up() -> NodeState | None:
        state = nodes.head.state()
        return state if state and state.nodes else None

    await_value(refused, "the refusal", FORMED)
    found = breaches(expected_nodes(nodes.topology), await_value(up, "the head", FORMED).nodes)
    assert [(breach.host, breach.summary) for breach in found] == [("worker", "has not joined Ray")]


ANOTHER_PATCH = """\
import collections, platform, sys
names = "major minor micro releaselevel serial"
version = collections.namedtuple("version", names)(*sys.version_info[:2], 99, "final", 0)
sys.version_info, platform.python_version = version, lambda: ".".join(map(str, version[:3]))
"""
"""sitecustomize.py: what Ray and the supervisor take for the release of Python."""


def test_a_worker_whose_python_is_another_patch_release(
    two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = two_nodes
    nodes.head.start()
    (nodes.worker.paths.root / "sitecustomize.py").write_text(ANOTHER_PATCH)
    monkeypatch.setenv("PYTHONPATH", str(nodes.worker.paths.root))
    nodes.worker.start()
    monkeypatch.undo()

    found = {node.name: node.python_version for node in formed(nodes).nodes if node.alive}
    assert found["worker"].endswith(".99")
    assert found["head"] != found["worker"]
    nodes.head.declare(SERVICE)
    await_ready(nodes)
