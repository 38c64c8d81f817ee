"""A supervisor in a thread, and programs it runs in place of `ray`, ray-watch and `vllm`."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.node.documents import (
    ExpectedNode,
    NodeDocument,
    NodeState,
    RayNode,
    ServiceDocument,
    ServiceState,
    from_json,
    to_json,
)
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.supervisor import Supervisor
from clusterctl.node.timing import Timing
from tests.fakes.ports import port_of, reserved

PROGRAMS = Path(__file__).parent / "node_programs"
PATIENCE = 60.0
T = TypeVar("T")

QUICK = Timing(
    tick=0.02,
    state_every=0.2,
    ray_backoff_first=0.1,
    ray_backoff_max=0.4,
    ray_stop=3.0,
    raylet_counted=0.5,
    head_poll=0.05,
    watch_interval=0.05,
    parts_every=0.05,
    unlisted_limit=0.2,
    service_backoff_first=0.1,
    service_backoff_max=0.4,
    stop_limit=5.0,
    rejoin=0.3,
    rank_patience=0.2,
    connect_every=0.05,
    answer_timeout=2.0,
    canary_every=0.3,
    quiet_first=0.5,
    quiet_longest=4.0,
    standby_refuses=1.0,
    memory_freed=0.1,
    scrape_every=0.1,
    evidence_here=0.2,
    evidence_everywhere=0.3,
    evidence_pause=0.05,
)
"""Pauses are short, and what bounds a program that works is not: a busy machine is not a fault.
A test of a limit shortens that one."""


def await_value(look: Callable[[], T | None], what: str, timeout: float = PATIENCE) -> T:
    """The first true value of `look`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = look()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {timeout} s for {what}")


@dataclass
class Bench:
    """One node under test: its files, what its fake programs do, its supervisor."""

    root: Path
    role: str = "head"
    gcs_port: int = 6379
    timing: Timing = QUICK
    paths: NodePaths = field(init=False)
    supervisor: Supervisor | None = None
    thread: threading.Thread | None = None
    ports: dict[str, socket.socket] = field(default_factory=dict)
    """Of each service."""

    def __post_init__(self) -> None:
        self.paths = NodePaths("demo", self.root)
        self.paths.services.mkdir(parents=True)
        self.paths.logs.mkdir(parents=True)
        self.behaviour("ray", {})
        self.behaviour("vllm", {})
        self.in_ray(self.node("a", "n1"), self.node("b", "n2"))
        for secret in (self.paths.api_key, self.paths.ray_token):
            secret.write_text(f"secret-{secret.suffix[1:]}\n")
            secret.chmod(0o600)
        self.declare_node()

    @staticmethod
    def node(host: str, node_id: str, **changes: Any) -> RayNode:
        base = RayNode(
            node_id=node_id, node_ip=f"10.0.0.{ord(host) - 96}", name=host, alive=True,
            head=host == "a", gpus=1, gpus_used=0, cpus=2,
            ray_version="2.60.0", python_version="3.12.1",
        )  # fmt: skip
        return replace(base, **changes)

    def document(self, **changes: Any) -> NodeDocument:
        base = NodeDocument(
            cluster="demo", host="a", role=self.role, node_ip="10.0.0.1", head_ip="127.0.0.1",
            ray_argv=[sys.executable, str(PROGRAMS / "fake_ray.py"), str(self.root)],
            env={"NODE_VARIABLE": "from-the-node"},
            expected=[ExpectedNode("a", "10.0.0.1", 1), ExpectedNode("b", "10.0.0.2", 1)],
            gcs_port=self.gcs_port,
        )  # fmt: skip
        return replace(base, **changes)

    def declare_node(self, **changes: Any) -> None:
        self._put(self.paths.node_document, to_json(self.document(**changes)))

    def behaviour(self, program: str, settings: dict[str, Any]) -> None:
        """What the next start of a fake program does; some of it is read while it runs."""
        self._put(self.root / f"{program}.json", json.dumps(settings))

    def in_ray(self, *nodes: RayNode) -> None:
        """What ray-watch reports from now on."""
        self._put(self.root / "nodes.json", json.dumps([vars(node) for node in nodes]))

    def actors(self, *workers: dict[str, Any]) -> None:
        """Which actors ray-watch reports from now on."""
        self._put(self.root / "workers.json", json.dumps(workers))

    def declare(self, name: str = "chat", **changes: Any) -> ServiceDocument:
        base = ServiceDocument(
            name=name, model="tiny", served_name="tiny",
            argv=[sys.executable, str(PROGRAMS / "fake_vllm.py"), str(self.root), "--arg"],
            env={"SERVICE_VARIABLE": "from-the-service"}, host="0.0.0.0", port=self._port(name),
            tensor_parallel=2, pipeline_parallel=1, gpus=2, fingerprint="1",
            ready_timeout=60.0, shutdown_timeout=1.0,
        )  # fmt: skip
        document = replace(base, **changes)
        self._put(self.paths.services / f"{name}.json", to_json(document))
        return document

    def remove(self, name: str = "chat") -> None:
        (self.paths.services / f"{name}.json").unlink()

    def start(self) -> None:
        watch = [sys.executable, str(PROGRAMS / "fake_ray_watch.py"), str(self.root)]
        journal = Journal(self.paths.journal, "a", io.StringIO())
        document = from_json(NodeDocument, self.paths.node_document.read_text())
        self.supervisor = Supervisor(self.paths, document, self.timing, journal, watch)
        self.thread = threading.Thread(target=self.supervisor.run)
        self.thread.start()

    def stop(self) -> None:
        self.end_supervisor()
        for port in self.ports.values():
            port.close()

    def end_supervisor(self) -> None:
        if self.supervisor and self.thread:
            self.supervisor.stop()
            self.thread.join(PATIENCE)
            assert not self.thread.is_alive()

    def state(self) -> NodeState | None:
        try:
            return from_json(NodeState, self.paths.state.read_text())
        except FileNotFoundError:
            return None

    def service(self, name: str = "chat") -> ServiceState | None:
        state = self.state()
        return next((s for s in state.services if s.name == name), None) if state else None

    def await_service(self, phase: str, **expected: Any) -> ServiceState:
        """The service's state, once it is in `phase` and has these values."""

        def look() -> ServiceState | None:
            found = self.service()
            matches = found and found.state == phase
            return found if matches and expected.items() <= vars(found).items() else None

        try:
            return await_value(look, f"{phase} {expected}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.service()}") from error

    def await_ray(self, phase: str, told: str = "", restarts: int = 0) -> NodeState:
        """The node's state, once Ray is in `phase`, its detail has these words, and it was started
        again that often."""

        def look() -> NodeState | None:
            state = self.state()
            matches = state and state.ray == phase and told in state.ray_detail
            return state if state and matches and state.ray_restarts >= restarts else None

        return await_value(look, f"Ray {phase} {told}")

    def events(self, subject: str) -> list[str]:
        """Words of the journal, in order."""
        return [entry["event"] for entry in self._journal() if entry["subject"] == subject]

    def told(self, subject: str) -> list[str]:
        """Sentences of the journal, in order."""
        return [entry["text"] for entry in self._journal() if entry["subject"] == subject]

    def _journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in _whole_lines(self.paths.journal)]

    def log(self, name: str = "chat") -> str:
        """What is in the log of a service so far."""
        path = self.paths.log(name)
        return path.read_text() if path.exists() else ""

    def starts(self, program: str) -> list[dict[str, Any]]:
        """What every start of a fake program saw: argv, env, pid."""
        return [json.loads(line) for line in _whole_lines(self.root / f"{program}.starts")]

    def _port(self, name: str) -> int:
        if name not in self.ports:
            self.ports[name] = reserved()
        return port_of(self.ports[name])

    @staticmethod
    def _put(path: Path, text: str) -> None:
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text)
        fresh.replace(path)


def _whole_lines(path: Path) -> list[str]:
    """Those that somebody who is writing has finished."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
