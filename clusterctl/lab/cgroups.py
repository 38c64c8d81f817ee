"""A control group for each host, so that all its processes are known, and can be ended.

Ending systemd-nspawn alone is not enough: its container goes on without it. On a machine
with cgroup v1 (or both versions) each host also gets its own view of the groups, in which
its group is the root; the groups of two hosts would otherwise be the same ones, and one
systemd would count, and end, the other's services.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.lab.local import run

MOUNT = Path("/sys/fs/cgroup")
LAB = "clusterctl-lab"
# nspawn splits these two into `payload` and `supervisor`; a container's root is `payload`.
_SPLIT_BY_NSPAWN = ("systemd", "unified")


def unified_only(mount: Path = MOUNT) -> bool:
    """Whether this machine has cgroup v2 alone."""
    return (mount / "cgroup.controllers").is_file()


def hierarchies(mount: Path = MOUNT) -> tuple[Path, ...]:
    """The mounted hierarchies: the mount itself (v2), or one directory each (v1)."""
    if unified_only(mount):
        return (mount,)
    return tuple(
        entry for entry in sorted(mount.iterdir()) if entry.is_dir() and not entry.is_symlink()
    )


def create(host: str) -> tuple[Path, ...]:
    """Create the host's group in every hierarchy. Return the files to which a process writes its
    id to join it."""
    joined = []
    for hierarchy in hierarchies():
        group = hierarchy
        for part in (LAB, host):
            parent, group = group, group / part
            available = parent / "cgroup.controllers"  # of v2 alone
            for controller in available.read_text().split() if available.is_file() else ():
                # Let sub-groups use it. Refused where the group has processes itself, as the top
                # one of a container has: hosts are then without its limits, which are not used.
                with suppress(OSError):
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            group.mkdir(exist_ok=True)
            # A new v1 cpuset is empty, and takes no process before it has CPUs and memory.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if hierarchy.name == "cpuset" and not (group / name).read_text().strip():
                    (group / name).write_text((parent / name).read_text())
        joined.append(group / "cgroup.procs")
    return tuple(joined)


def mount_view(host: str, target: Path) -> None:
    """Mount, at `target`, what the host shall see as /sys/fs/cgroup. v1 and hybrid only."""
    target.mkdir(parents=True, exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", "mode=755,size=64k", LAB, str(target)])
    for hierarchy in hierarchies():
        source = hierarchy / LAB / host
        if hierarchy.name in _SPLIT_BY_NSPAWN:
            source /= "payload"
        source.mkdir(exist_ok=True)
        point = target / hierarchy.name
        point.mkdir()
        run(["mount", "--bind", str(source), str(point)])


def members(host: str | None = None) -> frozenset[int]:
    """Processes in a host's groups, or in those of the whole lab."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        # Groups come and go meanwhile, and os.walk passes over those that have gone.
        for directory, _, _ in os.walk(_group(hierarchy, host)):
            # A group may go away, or be of a kind without processes (v2 threaded). 0 stands for a
            # process outside this process namespace, which is not ours to see or end.
            with suppress(OSError):
                pids = Path(directory, "cgroup.procs").read_text().split()
                found.update(int(pid) for pid in pids if pid != "0")
    return frozenset(found)


def kill_all(host: str | None = None) -> bool:
    """Kill everything in a host's groups at once, like a power loss; whether there was any."""
    deadline = time.monotonic() + deadlines.LAB_KILL
    had_any = False
    while pids := members(host):
        had_any = True
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise StepFailed(f"processes {sorted(pids)} do not end", host=host)
        time.sleep(0.05)
    return had_any


def remove(host: str | None = None) -> bool:
    """Remove the (empty) groups of a host, or of the whole lab; whether there were any."""
    had_any = False
    for hierarchy in hierarchies():
        group = _group(hierarchy, host)
        if group.is_dir():
            had_any = True
        # The kernel counts a process for a moment after it ended: then rmdir is refused.
        deadline = time.monotonic() + deadlines.LAB_KILL
        for directory in [Path(name) for name, _, _ in os.walk(group, topdown=False)]:
            while directory.is_dir():
                try:
                    directory.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
    return had_any


def _group(hierarchy: Path, host: str | None) -> Path:
    return hierarchy / LAB / host if host else hierarchy / LAB
