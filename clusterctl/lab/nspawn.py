"""Booting a host: systemd-nspawn on the host's overlay, in its namespace, in its group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl import deadlines
from clusterctl.lab import cgroups
from clusterctl.lab.layout import LabHost
from clusterctl.lab.local import is_mounted, start, unmount_under
from clusterctl.lab.network import NAMESPACES

RUNTIME = Path("/run/systemd/nspawn")

# Fixed scripts: what varies comes as arguments. A process must enter its groups itself,
# before it becomes the command; from outside there is a moment in which it is not there yet.
_ENTER_GROUPS = 'until [ "$1" = -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'
# nspawn ends with 133 when its host reboots, and expects to be started again.
_AGAIN_ON_REBOOT = 'while "$@"; [ $? -eq 133 ]; do :; done'


def nspawn_argv(host: LabHost, directory: Path, *, unified: bool) -> list[str]:
    """The command that boots a host; `unified` is a machine with cgroup v2 alone."""
    # overlay2, Docker's storage, does not sit on an overlay: its files go to the disk below.
    binds = [(directory / "docker", "/var/lib/docker"),
             (directory / "containerd", "/var/lib/containerd")]  # fmt: skip
    if not unified:
        binds.append((directory / "cgroup", "/sys/fs/cgroup"))
    # Started in the namespace that it is told to join: it mounts /sys before it joins, and the
    # host would find this machine's NICs there instead of its own.
    namespace = NAMESPACES / host.namespace
    return [
        "nsenter",
        f"--net={namespace}",
        "systemd-nspawn",
        f"--directory={directory / 'root'}",
        f"--machine={host.name}",
        f"--network-namespace-path={namespace}",
        "--boot",
        "--capability=all",
        "--register=no",
        "--keep-unit",
        "--system-call-filter=add_key keyctl bpf",
        "--resolv-conf=off",
        "--timezone=off",
        "--console=read-only",
        *(f"--bind={source}:{target}" for source, target in binds),
    ]


def nspawn_environment(*, unified: bool) -> Mapping[str, str]:
    """dockerd must be able to write below /proc/sys and /sys, and with v1 to see v1."""
    writable = {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"}
    return writable if unified else {**writable, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "0"}


def in_groups(files: Sequence[Path], argv: Sequence[str]) -> list[str]:
    """`argv`, started by a process that has entered the control groups of `files`."""
    return ["sh", "-c", _ENTER_GROUPS, "sh", *map(str, files), "--", *argv]


def boot(host: LabHost, directory: Path) -> None:
    """Start the host. Its overlay is mounted; nothing of it runs."""
    unified = cgroups.unified_only()
    for name in ("docker", "containerd"):
        (directory / name).mkdir(exist_ok=True)
    nspawn = in_groups(cgroups.create(host.name), nspawn_argv(host, directory, unified=unified))
    view = directory / "cgroup"
    if not unified and not is_mounted(view):
        cgroups.mount_view(host.name, view)
    keeper = ["sh", "-c", _AGAIN_ON_REBOOT, "sh", *nspawn]
    start(
        in_groups(cgroups.create(_keeper(host)), keeper),
        log=directory / "console.log",
        env=nspawn_environment(unified=unified),
    )
    _wait_for_power(host)


def halt(host: LabHost, directory: Path) -> bool:
    """End the host at once, as a power loss does; whether it ran. Its disk stays."""
    ran = [cgroups.kill_all(group) for group in (_keeper(host), host.name)]
    unmount_under(directory / "cgroup")
    for group in (_keeper(host), host.name):
        cgroups.remove(group)
    _remove_traces(host, directory / "root")
    return any(ran)


def is_running(host: LabHost) -> bool:
    """Whether the host has power. Between the two halves of a reboot only its keeper runs."""
    return bool(cgroups.members(_keeper(host)) | cgroups.members(host.name))


def _wait_for_power(host: LabHost) -> None:
    """Return once the host counts as running: its first process has yet to enter its group.
    One that fails at once may never be seen; whoever waits for the host will tell."""
    deadline = time.monotonic() + deadlines.LAB_POWER
    while not is_running(host) and time.monotonic() < deadline:
        time.sleep(0.01)


def _keeper(host: LabHost) -> str:
    """The group of the shell that waits for nspawn. Not a part of the host's own group: in
    cgroup v2 a group with groups below it has no processes."""
    return f"{host.name}-keeper"


def _remove_traces(host: LabHost, root: Path) -> None:
    """What nspawn would have tidied up itself, had it not been killed."""
    status = root.stat() if root.is_dir() else None
    if status:
        (RUNTIME / "locks" / f"inode-{status.st_dev}:{status.st_ino}").unlink(missing_ok=True)
    propagate = RUNTIME / "propagate" / host.name
    if propagate.is_dir():
        propagate.rmdir()
