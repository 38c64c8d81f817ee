"""Stands for `ray start --block`: says that it started, leaves a child in a group of its own.

Settings in ROOT/ray.json: `exit` (status to end with at once), `silent` (never says it runs),
`leaves` (ends once it has started all, as without --block),
`parts` (what its processes are called; their pids, in that order, go into ROOT/ray.parts).
"""

# ruff: noqa: T201 - what a program prints is its log

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

root = Path(sys.argv[1])
settings = json.loads((root / "ray.json").read_text())
with (root / "ray.starts").open("a") as starts:
    entry = {"pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ)}
    starts.write(json.dumps(entry) + "\n")
if "exit" in settings:
    print("Error: ", settings.get("words", "no"), flush=True)
    sys.exit(settings["exit"])
agent = subprocess.Popen(["sleep", "600"], process_group=0)
parts = [
    subprocess.Popen([name, "600"], executable="/bin/sleep") for name in settings.get("parts", [])
]
(root / "ray.parts").write_text(json.dumps([part.pid for part in parts]))
if not settings.get("silent"):
    print("Ray runtime started.", flush=True)
if settings.get("leaves"):
    os._exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pause()
