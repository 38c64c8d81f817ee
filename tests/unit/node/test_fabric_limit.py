"""The gate's own process ends in time, whatever hangs, and says so before."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from tests.fakes.fabric_agents import spec

HANGS = """
import sys, threading
from clusterctl.node import fabric_ray, timing

timing.GATE = 0.1
fabric_ray.RayAgents = lambda nodes: threading.Event().wait()
sys.exit(fabric_ray.main())
"""


def test_a_gate_that_cannot_join_ray_reports_that_and_ends() -> None:
    argv = [sys.executable, "-c", HANGS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as gate:
        assert gate.stdin
        assert gate.stdout
        gate.stdin.write(json.dumps(asdict(spec("a", "b"))) + "\n")
        gate.stdin.flush()  # and stays open: its end would end the gate
        report = json.loads(gate.stdout.readline())["report"]
        assert gate.wait(60) == 4
    assert (report["failed"], report["error"]) == ("time", "0.1 s (joining Ray)")
