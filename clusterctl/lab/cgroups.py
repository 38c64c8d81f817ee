"""A control group for each host, so that all its processes are known and can be killed.

Killing systemd-nspawn alone is not enough: its container survives it. On a machine with cgroup v1
(or both versions) each host also gets its own view of the groups, in which its group is the root;
otherwise two hosts would share the same groups, and one's systemd would count, and kill, the
other's services.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
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
    """Whether this machine has only cgroup v2."""
    return (mount / "cgroup.controllers").is_file()


def hierarchies(mount: Path = MOUNT) -> tuple[Path, ...]:
    """Return the mounted hierarchies: the mount itself (v2), or one directory each (v1)."""
    if unified_only(mount):
        return (mount,)
    return tuple(
        entry for entry in sorted(mount.iterdir()) if entry.is_dir() and not entry.is_symlink()
    )


def create(host: str) -> tuple[Path, ...]:
    """Create the host's group in every hierarchy. Return the files to which a process writes its
    PID to join it."""
    joined = []
    for hierarchy in hierarchies():
        group = hierarchy
        for part in (LAB, host):
            parent, group = group, group / part
            available = parent / "cgroup.controllers"  # only in v2
            for controller in available.read_text().split() if available.is_file() else ():
                # Enable it for sub-groups. Refused if the group itself has processes, like the top
                # one of a container: hosts then lack its limits, which are not used.
                with suppress(OSError):
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            group.mkdir(exist_ok=True)
            # A new v1 cpuset is empty, and accepts no process until it has CPUs and memory.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if hierarchy.name == "cpuset" and not (group / name).read_text().strip():
                    (group / name).write_text((parent / name).read_text())
        joined.append(group / "cgroup.procs")
    return tuple(joined)


# A fixed script with arguments. A process must enter its groups itself, before it executes the
# command; moved from outside, it would run for a moment without them.
_ENTER_GROUPS = 'until [ "$1" = -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'


def entering(files: Sequence[Path], argv: Sequence[str]) -> list[str]:
    """Return an argv that enters the control groups of `files` and then runs `argv`."""
    return ["sh", "-c", _ENTER_GROUPS, "sh", *map(str, files), "--", *argv]


def mount_view(host: str, target: Path) -> None:
    """Mount the host's view of /sys/fs/cgroup at `target`. For v1 and hybrid machines only."""
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
    """Return the processes in a host's groups, or in those of the whole lab."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        # Groups come and go meanwhile; os.walk skips those that are gone.
        for directory, _, _ in os.walk(_group(hierarchy, host)):
            # A group may be removed, or be of a kind without processes (v2 threaded). 0 stands for
            # a process outside this PID namespace, which cannot be seen or killed from here.
            with suppress(OSError):
                pids = Path(directory, "cgroup.procs").read_text().split()
                found.update(int(pid) for pid in pids if pid != "0")
    return frozenset(found)


def kill_all(host: str | None = None) -> bool:
    """Kill all processes in a host's groups, like a power loss. Return whether there were any."""
    deadline = time.monotonic() + deadlines.LAB_KILL
    had_any = False
    while pids := members(host):
        had_any = True
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise StepFailed(f"processes {sorted(pids)} are still running", host=host)
        time.sleep(0.05)
    return had_any


def remove(host: str | None = None) -> bool:
    """Remove the (empty) groups of a host, or of the whole lab. Return whether there were any."""
    had_any = False
    for hierarchy in hierarchies():
        group = _group(hierarchy, host)
        if group.is_dir():
            had_any = True
        # The kernel refuses rmdir for a moment after the last process has ended.
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
