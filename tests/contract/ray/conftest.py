"""Two nodes on this machine: each a real supervisor with a real Ray, in a PID namespace of its
own (as in its container), on a loopback address of its own."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterctl.inventory.model import Gpu, Host, Inventory, RayPorts, Role
from clusterctl.node import package
from clusterctl.node.documents import NodeDocument, NodeState, ServiceDocument, from_json, to_json
from clusterctl.node.files import NodePaths
from clusterctl.ray_cluster.nodes import expected_nodes, node_environment, ray_argv
from clusterctl.ray_cluster.topology import Node, Topology
from tests.contract.transport.sshd import eventually, is_alive

BASE_PORTS = {"127.0.0.2": 21000, "127.0.0.3": 22000}
GCS = 21379
BIN = Path(sys.executable).parent


def _ports(ip: str) -> RayPorts:
    """Both nodes share one network, so the ports that are equal on real hosts differ here."""
    base = BASE_PORTS[ip]
    return RayPorts(
        gcs=GCS, node_manager=base + 1, object_manager=base + 2, runtime_env_agent=base + 3,
        dashboard_agent_listen=base + 4, dashboard_agent_grpc=base + 5, metrics_export=base + 6,
        dashboard=base + 7, ray_client=base + 8, min_worker=base + 20, max_worker=base + 90,
    )  # fmt: skip


@dataclass
class RunningNode:
    """One node: its files and its supervisor."""

    node: Node
    paths: NodePaths
    program: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def ports(self) -> RayPorts:
        return _ports(self.node.node_ip)

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
             sys.executable, str(self.program), "supervise",
             "--cluster", self.paths.cluster, "--root", str(self.paths.root)],
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def pull_the_plug(self) -> None:
        """Everything on the node ends at once: the first process of a PID namespace takes all,
        and is the last to go. The disk is quiet and the ports are free when this returns."""
        assert self.process
        first = self.first_process()
        self.process.kill()
        self.process.wait()
        assert first is None or eventually(lambda: not is_alive(first))

    def shut_down(self) -> int:
        """SIGTERM to the supervisor, as `docker stop` sends it; its exit status."""
        assert self.process
        first = self.first_process()
        assert first
        os.kill(first, signal.SIGTERM)
        return self.process.wait(120)

    def first_process(self) -> int | None:
        """Of the node's PID namespace, while there is one."""
        assert self.process
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = children.read_text().split() if self.process.poll() is None else []
        return int(found[0]) if found else None

    def state(self) -> NodeState | None:
        try:
            return from_json(NodeState, self.paths.state.read_text())
        except FileNotFoundError:
            return None

    def kill_raylet(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid_of("raylet/raylet"), number)

    def pid_of(self, program: str) -> int:
        """The process of this node whose first argument ends so."""
        for entry in Path("/proc").iterdir():
            words = _command_line(entry)
            if words and words[0].endswith(program) and any(
                word.endswith(f"={self.node.node_ip}") for word in words
            ):  # fmt: skip
                return int(entry.name)
        raise AssertionError(f"no {program} with {self.node.node_ip}")

    def declare(self, document: ServiceDocument) -> None:
        fresh = self.paths.services / ".new"
        fresh.write_text(to_json(document))
        fresh.replace(self.paths.services / f"{document.name}.json")


def _command_line(entry: Path) -> list[str]:
    if not entry.name.isdigit():
        return []
    try:
        return entry.joinpath("cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


@dataclass
class TwoNodes:
    head: RunningNode
    worker: RunningNode
    topology: Topology


@pytest.fixture
def own_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The nodes' addresses and ports, until no test in another process of this run has them."""
    with (tmp_path_factory.getbasetemp().parent / "two_nodes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def two_nodes(own_ports: None) -> Iterator[TwoNodes]:
    # Not tmp_path: Ray's sockets live below it, and their paths may have 107 bytes at most.
    directory = Path(tempfile.mkdtemp(prefix="cn", dir="/tmp"))
    topology = Topology((_node("head", "127.0.0.2"), _node("worker", "127.0.0.3")))
    token = secrets.token_hex(32)
    head, worker = (_set_up(directory, topology, node, token) for node in topology.nodes)
    yield TwoNodes(head, worker, topology)
    for running in (worker, head):
        if running.process:
            running.pull_the_plug()
    shutil.rmtree(directory)


def _node(host: str, ip: str) -> Node:
    role: Role = "head" if host == "head" else "worker"
    return Node(host, role, ip, "lo", ("lo",), "lo", (), gpus=1)


def _inventory() -> Inventory:
    hosts = (
        Host(name="head", address="127.0.0.2", role="head", gpus=(Gpu(),)),
        Host(name="worker", address="127.0.0.3", gpus=(Gpu(),)),
    )
    return Inventory(
        cluster="demo", image="none", accelerator="cpu", hosts=hosts, ray_ports=RayPorts(gcs=GCS)
    )


def _set_up(directory: Path, topology: Topology, node: Node, token: str) -> RunningNode:
    paths = NodePaths("demo", directory / node.host[0])
    paths.services.mkdir(parents=True)
    paths.logs.mkdir(parents=True)
    if node.role == "head":
        paths.tables.mkdir(parents=True)
    for secret in (paths.ray_token, paths.api_key):
        secret.write_text(token)
        secret.chmod(0o600)
    env = node_environment(_inventory(), topology, node)
    env["RAY_AUTH_TOKEN_PATH"] = str(paths.ray_token)
    argv = ray_argv(node, topology.head.node_ip, _ports(node.node_ip))
    argv += ["--num-cpus=1", f"--temp-dir={paths.root}/t"]
    argv += ["--include-dashboard=false"] if node.role == "head" else []
    argv = [word.replace("memory=1000000000", "memory=100000000") for word in argv]
    document = NodeDocument(
        cluster="demo", host=node.host, role=node.role, node_ip=node.node_ip,
        head_ip=topology.head.node_ip, ray_argv=argv, env=env,
        expected=expected_nodes(topology), gcs_port=GCS,
    )  # fmt: skip
    paths.node_document.write_text(to_json(document))
    program = paths.root / "node.pyz"
    program.write_bytes(package.build())
    return RunningNode(node, paths, program)
