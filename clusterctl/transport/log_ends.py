"""Answer with the ends of all logs in a directory and with what the kernel said of GPUs, memory and
links in the last day. A program for hosts, Python 3.9.

The argument of `main` is {"directory", "kernel"}: a regular expression for lines of the kernel. The
answer is {"chat.log": "text", ..., "kernel": "text"}.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Optional

from clusterctl.transport.log_reader import open_log

LONGEST = 2 << 20  # Bytes of a log
MOST = 8 << 20  # Bytes of all logs, the newest first; as JSON they may be twice as long
_KERNEL_LINES = 400
_KERNEL_WAIT = 20.0  # Seconds

_KERNEL_LOGS = (
    ("journalctl", "-k", "-q", "--no-pager", "-o", "short-iso", "--since=-1d"),
    ("dmesg",),
)


def end_of(path: Path, most: int) -> str:
    """Return the end of a log; empty if it is no regular file or cannot be read."""
    try:
        descriptor = open_log(str(path))
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - min(LONGEST, most)))
        return file.read(min(LONGEST, most)).decode("utf-8", "replace")


def changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def kernel(wanted: str) -> str:
    """Return the last lines of the kernel's log that match."""
    for argv in _KERNEL_LOGS:
        try:
            ran = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, timeout=_KERNEL_WAIT, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if ran.returncode == 0:
            lines = ran.stdout.decode("utf-8", "replace").splitlines(keepends=True)
            return "".join([line for line in lines if re.search(wanted, line)][-_KERNEL_LINES:])
    return ""


def main(order: Optional[Dict[str, Any]]) -> None:
    """Print the answer as JSON."""
    if not order:
        return
    found: Dict[str, str] = {}
    left = MOST
    for log in sorted(Path(order["directory"]).glob("*.log"), key=changed, reverse=True):
        found[log.name] = end_of(log, left)
        left -= len(found[log.name])
        if left <= 0:
            break
    found["kernel"] = kernel(order["kernel"])
    sys.stdout.write(json.dumps(found))
