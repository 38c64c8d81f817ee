"""Stands for ray-watch: prints ROOT/nodes.json as a snapshot, over and over, and noise. While there
is a ROOT/gcs.silent the GCS does not answer. ROOT/clock: seconds that the host's clock is ahead.
ROOT/gateway.json: what the head told the gateways."""

# ruff: noqa: T201 - what a program prints is its log

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

root = Path(sys.argv[1])
print("[W 123] a warning of Ray's C++ core", flush=True)
while True:
    nodes = json.loads((root / "nodes.json").read_text())
    workers = root / "workers.json"
    found = json.loads(workers.read_text()) if workers.exists() else []
    error = "RpcError: timed out" if (root / "gcs.silent").exists() else ""
    told = root / "gateway.json"
    gateway = told.read_text() if told.exists() else ""
    answer = {} if error else {"nodes": nodes, "workers": found, "gateway": gateway}
    clock = root / "clock"
    now = time.time() + (float(clock.read_text()) if clock.exists() else 0)
    print(json.dumps({"time": now, "error": error, **answer}), flush=True)
    time.sleep(0.05)
