"""The link of this machine into the lab: its rate, and the bytes that left through it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.lab.layout import CONTROL


def sent_bytes() -> int:
    """Bytes that left this machine towards the hosts since the bridge was made; what hosts send
    each other passes over the bridge uncounted."""
    argv = ["ip", "-json", "-statistics", "link", "show", CONTROL.bridge]
    shown = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
    return int(shown[0]["stats64"]["tx"]["bytes"])


@contextmanager
def limited(rate: int) -> Iterator[None]:
    """This machine's own link at `rate` bits a second, as the lab limits those of hosts."""
    burst = str(max(64 * 1024 + 1024, rate // 8 // 100))
    tbf = ["tbf", "rate", f"{rate}bit", "burst", burst, "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "replace", "dev", CONTROL.bridge, "root", *tbf], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "delete", "dev", CONTROL.bridge, "root"], check=True)
