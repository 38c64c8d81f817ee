"""Stands for ray-watch: prints ROOT/nodes.json as a snapshot, over and over, and noise."""

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
    print(json.dumps({"time": time.time(), "nodes": nodes, "workers": found}), flush=True)
    time.sleep(0.05)
