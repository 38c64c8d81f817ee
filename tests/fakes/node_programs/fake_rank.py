"""Stands for `fabric-rank` without torch: tells the same phases, meets nobody. FAKE_RANK in its
environment is what goes wrong: hang | wrong | die."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def join(order: dict[str, Any], fault: str) -> None:
    if fault == "hang":
        sys.stderr.write("it hangs from here on\n")
        sys.stderr.flush()
        time.sleep(3600)
    for backend in ("gloo", order["gpu_backend"]):
        if backend != "gloo" and order["device"] < 0:
            continue
        say(phase="joined", backend=backend)
        if fault == "wrong":
            say(phase="error", backend=backend, text=f"{backend} all-reduce gave 7 wrong elements")
            return
        say(phase="correct", backend=backend)
        say(phase="measured", backend=backend, seconds=0.01, latency=1e-4, size=2**20)
    say(phase="done")


def main() -> None:
    fault = os.environ.get("FAKE_RANK", "")
    sys.stderr.write("a line for people\n")
    sys.stderr.flush()
    say(phase="imported", torch="0")
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "store":
            say(phase="store", port=4242)
        elif fault == "die":
            sys.exit(9)
        else:
            join(order, fault)


if __name__ == "__main__":
    main()
