"""The gate's way through a real Ray: processes on every node, with that node's own environment."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from clusterctl.node.documents import NodeDocument, from_json
from clusterctl.node.fabric_documents import FabricReport, FabricSpec
from clusterctl.ray_cluster.contract import await_formed
from clusterctl.ray_cluster.nodes import expected_nodes
from tests.contract.ray.conftest import RunningNode, TwoNodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
pytest.importorskip("ray")

FORMED = 180.0


def gate(head: RunningNode, spec: FabricSpec) -> FabricReport:
    """As `docker exec` runs it: in the node's own namespaces, with its environment."""
    document = from_json(NodeDocument, head.paths.node_document.read_text())
    process = subprocess.Popen(
        ["nsenter", "-t", str(head.first_process()), "--pid", "--mount",
         sys.executable, str(head.program), "fabric"],
        env={**os.environ, **document.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    with process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(asdict(spec)) + "\n")
        process.stdin.flush()
        told = [json.loads(line) for line in process.stdout if line.startswith("{")]
    return from_json(FabricReport, json.dumps(told[-1]["report"]))


def test_ray_starts_the_gates_processes_on_both_nodes(two_nodes: TwoNodes) -> None:
    two_nodes.head.start()
    two_nodes.worker.start()
    expected = expected_nodes(two_nodes.topology)
    await_formed(expected, two_nodes.head.state, FORMED)

    report = gate(two_nodes.head, FabricSpec(expected))

    ips = {node.host: node.env["VLLM_HOST_IP"] for node in report.seen}
    assert ips == {"head": "127.0.0.2", "worker": "127.0.0.3"}
    if importlib.util.find_spec("torch"):
        assert not report.failed
    else:
        assert report.failed == "import"
        assert "No module named 'torch'" in report.error
