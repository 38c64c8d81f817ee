"""The head's Ray dies in every way while ranks run on a worker: with its tables they go on, and
where those are of no use all begins anew, and says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from clusterctl.node.documents import NodeState, ServiceDocument, ServiceState
from clusterctl.ray_cluster.contract import await_formed
from clusterctl.ray_cluster.nodes import expected_nodes
from tests.contract.ray.conftest import RunningNode, TwoNodes
from tests.fakes.node_bench import PROGRAMS, await_value

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]
pytest.importorskip("ray")

FORMED = 180.0
"""Seconds."""

ALONE = ServiceDocument(
    name="chat", model="tiny", served_name="tiny",
    argv=[sys.executable, str(PROGRAMS / "ranks_in_ray.py"), "22900", "1", "127.0.0.3"],
    env={}, host="127.0.0.3", port=22900, tensor_parallel=1, pipeline_parallel=1, gpus=1,
    fingerprint="1", ready_timeout=180, shutdown_timeout=5, node_ips=["127.0.0.3"],
)  # fmt: skip
BESIDE = replace(
    ALONE, name="chat@2", replica=2, node_ips=["127.0.0.2"], host="127.0.0.2", port=21900,
    argv=[sys.executable, str(PROGRAMS / "ranks_in_ray.py"), "21900", "1", "127.0.0.2"],
)  # fmt: skip


def service(node: RunningNode) -> ServiceState | None:
    state = node.state()
    return state.services[0] if state and state.services else None


def ready(node: RunningNode) -> ServiceState:
    def look() -> ServiceState | None:
        found = service(node)
        return found if found and found.state == "ready" and found.ranks else None

    try:
        return await_value(look, f"the service on {node.node.host}", FORMED)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{what_it_says(node)}") from error


def what_it_says(node: RunningNode) -> str:
    """Its state and the ends of its logs: its files are gone when somebody reads of a failure."""
    logs = [node.paths.state, node.paths.journal, *sorted(node.paths.logs.glob("*.log"))]
    return "\n\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs)


def formed(nodes: TwoNodes) -> NodeState:
    return await_formed(expected_nodes(nodes.topology), nodes.head.state, FORMED)


def started(nodes: TwoNodes) -> ServiceState:
    """The service on the worker, once all serves."""
    nodes.head.start()
    nodes.worker.start()
    formed(nodes)
    nodes.worker.declare(ALONE)
    nodes.head.declare(BESIDE)
    ready(nodes.head)
    return ready(nodes.worker)


def told(node: RunningNode, event: str) -> list[str]:
    lines = node.paths.journal.read_text().splitlines()
    return [entry["text"] for entry in map(json.loads, lines) if entry["event"] == event]


def node_id(nodes: TwoNodes, name: str) -> str:
    return next(node.node_id for node in formed(nodes).nodes if node.name == name and node.alive)


def comes_back(nodes: TwoNodes) -> None:
    nodes.head.pull_the_plug()
    nodes.head.paths.state.unlink()
    nodes.head.start()


def test_what_runs_on_a_worker_goes_on(
    two_nodes: TwoNodes, record_property: Callable[[str, object], None]
) -> None:
    nodes = two_nodes
    before, raylet = started(nodes), node_id(nodes, "worker")

    began = time.monotonic()
    comes_back(nodes)
    formed(nodes)
    record_property("formed again after the head's power loss", time.monotonic() - began)
    ready(nodes.head)  # A new placement group
    record_property("the head's replica serves again", time.monotonic() - began)
    assert node_id(nodes, "worker") == raylet
    assert ready(nodes.worker).pid == before.pid

    own = ready(nodes.head)
    for _ in range(3):
        gcs = nodes.head.pid_of("gcs/gcs_server")
        os.kill(gcs, signal.SIGKILL)
        began = time.monotonic()
        await_value(partial(_other_gcs, nodes, gcs), "the GCS again", FORMED)
        formed(nodes)
        record_property("the GCS again after", time.monotonic() - began)
        time.sleep(12)  # One that ends sooner takes all with it
    assert (ready(nodes.head).pid, ready(nodes.worker).pid) == (own.pid, before.pid)
    assert node_id(nodes, "worker") == raylet

    for _ in range(3):
        pid = ready(nodes.worker).pid
        nodes.worker.kill_raylet()
        joined_alone(nodes)
        await_value(partial(_other_service, nodes.worker, pid), "the service again", FORMED)


def joined_alone(nodes: TwoNodes) -> None:
    """Waits until the worker is another node of Ray, which the GCS never lists beside the first: it
    would give the new one bundles of the old one's placement groups while these are removed."""
    first = node_id(nodes, "worker")

    def look() -> bool:
        state = nodes.head.state()
        listed = state.nodes if state else []
        alive = {node.node_id for node in listed if node.alive and node.name == "worker"}
        assert len(alive) < 2, listed
        return bool(alive - {first})

    await_value(look, "another node of Ray", FORMED)


def _other_service(node: RunningNode, old: int) -> bool:
    return ready(node).pid != old


def _other_gcs(nodes: TwoNodes, old: int) -> bool:
    try:
        return nodes.head.pid_of("gcs/gcs_server") != old
    except AssertionError:
        return False


def damaged(nodes: TwoNodes) -> None:
    for table in nodes.head.paths.tables.rglob("MANIFEST-*"):
        table.write_bytes(b"no manifest")


def of_another_ray(nodes: TwoNodes) -> None:
    (nodes.head.paths.tables / "of").write_text("Ray 2.59.0, token 1\n")


def away(nodes: TwoNodes) -> None:
    nodes.head.paths.tables.rename(nodes.head.paths.tables.with_name("away"))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (damaged, "Ray did not start with them 3 times in a row"),
        (of_another_ray, "they are of Ray 2.59.0"),
        (away, ""),
    ],
)
def test_all_begins_anew_where_tables_are_of_no_use(
    two_nodes: TwoNodes,
    record_property: Callable[[str, object], None],
    fault: Callable[[TwoNodes], None],
    says: str,
) -> None:
    nodes = two_nodes
    before, raylet = started(nodes), node_id(nodes, "worker")

    nodes.head.pull_the_plug()
    nodes.head.paths.state.unlink()
    fault(nodes)
    nodes.head.start()

    began = time.monotonic()
    # Three starts with damaged tables fail first, each after 10 to 45 s.
    await_value(lambda: _joined_anew(nodes, raylet), "the worker as another node", 2 * FORMED)
    record_property("formed again", time.monotonic() - began)
    assert ready(nodes.worker).pid != before.pid
    ready(nodes.head)
    assert says in " ".join(told(nodes.head, "tables"))


@pytest.fixture
def small_disk(two_nodes: TwoNodes) -> Iterator[TwoNodes]:
    """The tables of the head have a disk of their own."""
    tables = two_nodes.head.paths.tables
    mounted = ["mount", "-t", "tmpfs", "-o", "size=160m", "tables", str(tables)]
    subprocess.run(mounted, check=True)
    yield two_nodes
    for running in (two_nodes.worker, two_nodes.head):
        running.pull_the_plug()
    subprocess.run(["umount", tables], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_a_disk_that_fills_up_stops_nothing_while_the_gcs_runs(small_disk: TwoNodes) -> None:
    """With one that starts then: unit/node/test_gcs_store.py."""
    nodes = small_disk
    before, raylet = started(nodes), node_id(nodes, "worker")
    with (nodes.head.paths.tables / "fill").open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(2**20))

    nodes.worker.kill_raylet()  # A node, an actor and a placement group are written
    await_value(lambda: ready(nodes.worker).pid != before.pid, "the service again", FORMED)
    assert node_id(nodes, "worker") != raylet
    assert told(nodes.head, "tables") == []


def _joined_anew(nodes: TwoNodes, raylet: str) -> bool:
    state = nodes.head.state()
    alive = [node for node in state.nodes if node.alive] if state else []
    return [node.name for node in alive if node.name == "worker" and node.node_id != raylet] != []
