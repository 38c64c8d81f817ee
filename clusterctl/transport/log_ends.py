"""Return the ends of all logs in a directory, and what the kernel logged about GPUs, memory and
links in the last day. A program for hosts, Python 3.9.

The argument of `main` is {"directory", "kernel", "most", "whole", "also", "secrets"}, or of one log
alone {"directory", "only", "secrets"}: its name; a regular expression for lines of the kernel;
bytes of all logs; whether evidence is wanted with its stacks and logs; patterns of more files;
files whose content is replaced wherever it stands. The answer is {"chat.log": "text", ...,
"kernel": "text"}, with what the host recorded, and in "disks.json" {"/": [MiB free, in all]}: a
full one may be that of the journal. "time.json" has the host's clock, and "engine" what Docker said
of devices that it could not give to containers.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Optional, Tuple

from clusterctl.transport.log_reader import open_log

LONGEST = 2 << 20  # Bytes of a log
RECORDED = ("journal.jsonl", "ledger.jsonl")
_EVIDENCE = 3  # Files
_KERNEL_LINES = 400
_LEAST_SECRET = 8  # Characters
REMOVED = "[removed]"
_KERNEL_WAIT = 20.0  # Seconds
_DISKS = ("/", "/tmp", "/dev/shm", "/var/lib/docker", "/var/lib/containers")  # noqa: S108

_JOURNAL = ("journalctl", "-q", "--no-pager", "--utc", "-o", "short-iso", "--since=-1d")
_KERNEL_LOGS = ((*_JOURNAL, "-k"), ("dmesg",))
_ENGINE_LOGS = ((*_JOURNAL, "-u", "docker"),)
ENGINE_LINES = (
    "could not select device driver|CDI device injection failed|bind mount source stat: stat"
)


def end_of(path: Path, most: int, *, whole_lines: bool = False) -> str:
    """Return the end of a log; "" if it is not a regular file or cannot be read. `whole_lines`:
    drop a truncated first line, which may contain part of a secret."""
    try:
        descriptor = open_log(str(path))
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        begin = os.fstat(descriptor).st_size - min(LONGEST, most)
        file.seek(max(0, begin))
        end = file.read(min(LONGEST, most))
        if whole_lines and begin > 0:
            end = end.partition(b"\n")[2]
        return end.decode("utf-8", "replace")


def changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def matching(logs: Iterable[Tuple[str, ...]], wanted: str) -> str:
    """Return the last matching lines of the output of the first command that works."""
    for argv in logs:
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


def disks(paths: Iterable[str]) -> Dict[str, Tuple[int, int]]:
    """Return the free and total MiB of the file systems of paths that exist and are writable: the
    root of an image-based system has nothing free."""
    found: Dict[str, Tuple[int, int]] = {}
    for path in paths:
        try:
            size = os.statvfs(path)
        except OSError:
            continue
        unit = size.f_frsize
        if not size.f_flag & os.ST_RDONLY:
            found[path] = size.f_bavail * unit >> 20, size.f_blocks * unit >> 20
    return found


def of_host(directory: Path, order: Dict[str, Any]) -> Dict[str, str]:
    """Return what the order requests, by name."""
    found: Dict[str, str] = {}
    whole = order["whole"]
    left = order["most"]
    for log in sorted(directory.glob("*.log"), key=changed, reverse=True):
        found[log.name] = end_of(log, left, whole_lines=whole)
        left -= len(found[log.name])
        if left <= 0:
            break
    paths = [directory / name for name in RECORDED]
    for pattern in order["also"]:
        paths += sorted(Path("/").glob(pattern[1:]))
    for path in paths:
        if path.exists():
            found[path.name] = end_of(path, LONGEST, whole_lines=whole)
    for path in sorted(directory.glob("evidence-*.json"))[-_EVIDENCE:]:
        text = end_of(path, LONGEST)
        found[path.name] = text if whole else without_stacks(text)
    found["kernel"] = matching(_KERNEL_LOGS, order["kernel"])
    found["engine"] = matching(_ENGINE_LOGS, ENGINE_LINES)
    found["time.json"] = json.dumps(time.time())
    found["disks.json"] = json.dumps(disks((*_DISKS, str(directory))))
    return found


def main(order: Optional[Dict[str, Any]]) -> None:
    """Print the answer as JSON."""
    if not order:
        return
    directory = Path(order["directory"])
    if "only" in order:
        name = str(order["only"])
        found = {name: end_of(directory / name, LONGEST)}
    else:
        found = of_host(directory, order)
    for path in map(Path, order["secrets"]):
        for secret in end_of(path, LONGEST).split():
            if len(secret) >= _LEAST_SECRET:
                found = {name: text.replace(secret, REMOVED) for name, text in found.items()}
    sys.stdout.write(json.dumps(found))


def without_stacks(evidence: str) -> str:
    """Return a file of evidence without its largest parts; "" if it is damaged."""
    try:
        document = json.loads(evidence)
        processes = [{**each, "stacks": ""} for each in document["processes"]]
        return json.dumps({**document, "logs": {}, "processes": processes})
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
