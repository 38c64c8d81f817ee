"""The package mirror: a static web server on the controller's address on the bridge.

It is the only server that a host can reach outside the lab, and stands for real package sources.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.lab.layout import CONTROL
from clusterctl.lab.local import last_lines, start

MIRROR_PORT = 8077
MIRROR_URL = f"http://{CONTROL.controller}:{MIRROR_PORT}"
MIRROR_DEBIAN = f"{MIRROR_URL}/debian"
MIRROR_PIP = f"{MIRROR_URL}/pip/simple"
# Python's server first looks up the name of its address, which is not needed.
_NAMES_SOON = {"RES_OPTIONS": "timeout:1 attempts:1"}


def server_argv(directory: Path) -> list[str]:
    """Return the server's command. -I: no module of the current directory shadows the library's."""
    bind = ["--bind", str(CONTROL.controller), "--directory", str(directory)]
    return [sys.executable, "-I", "-m", "http.server", *bind, str(MIRROR_PORT)]


def ensure_mirror(directory: Path, contents: dict[str, Path]) -> bool:
    """Serve `contents` (name below the root to a directory). Return whether anything changed."""
    directory.mkdir(parents=True, exist_ok=True)
    changed = [_ensure_link(directory / name, target) for name, target in contents.items()]
    if server_pids(directory):
        return any(changed)
    _start(directory)
    return True


def server_pids(directory: Path) -> tuple[int, ...]:
    """Return the processes that serve this directory in this network namespace. One in another
    namespace belongs to another lab, in a container or sandbox beside this one."""
    wanted = ("http.server", f"--directory\0{directory}\0")
    here = Path("/proc/self/ns/net").readlink()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode(errors="replace")
            network = entry.with_name("ns").joinpath("net").readlink()
        except OSError:
            continue  # the process ended meanwhile
        if network == here and all(part in command for part in wanted):
            found.append(int(entry.parent.name))
    return tuple(found)


def stop_mirror(directory: Path) -> bool:
    """Stop the server. Return whether it ran."""
    pids = server_pids(directory)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + deadlines.LAB_PACKAGE_SERVER
    while left := server_pids(directory):
        if time.monotonic() > deadline:
            raise StepFailed(f"the mirror (process {left[0]}) does not end")
        time.sleep(0.05)
    return bool(pids)


def _ensure_link(link: Path, target: Path) -> bool:
    if link.is_symlink() and link.readlink() == target:
        return False
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    return True


def _start(directory: Path) -> None:
    log = directory.with_name("mirror.log")
    start(server_argv(directory), log=log, env=_NAMES_SOON)
    deadline = time.monotonic() + deadlines.LAB_PACKAGE_SERVER
    while not (_answers() and server_pids(directory)):
        if time.monotonic() > deadline:
            raise StepFailed(
                f"the package mirror does not start on port {MIRROR_PORT}",
                hint=f"read {log}",
                detail=last_lines(log, 5),
            )
        time.sleep(0.05)


def _answers() -> bool:
    try:
        with socket.create_connection(
            (str(CONTROL.controller), MIRROR_PORT), timeout=deadlines.LAB_GREETING
        ):
            return True
    except OSError:
        return False
