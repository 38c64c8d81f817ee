"""Boot a host: systemd-nspawn on the host's overlay, in its namespace and control group."""

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

# nspawn exits with 133 when its host reboots, and must be started again.
_AGAIN_ON_REBOOT = 'while "$@"; [ $? -eq 133 ]; do :; done'


def nspawn_argv(
    host: LabHost, directory: Path, *, unified: bool, devices: Sequence[str] = ()
) -> list[str]:
    """Return the command that boots a host. `unified`: the machine has only cgroup v2. `devices`:
    nspawn's arguments for the host's GPUs."""
    # overlay2, Docker's storage, does not work on an overlay: bind the disk below it.
    binds = [(directory / "docker", "/var/lib/docker"),
             (directory / "containerd", "/var/lib/containerd")]  # fmt: skip
    if not unified:
        binds.append((directory / "cgroup", "/sys/fs/cgroup"))
    # Start nspawn inside the namespace that it will join: it mounts /sys before it joins, and the
    # host would otherwise see this machine's NICs there.
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
        *devices,
    ]


def nspawn_environment(*, unified: bool) -> Mapping[str, str]:
    """Variables for nspawn: dockerd needs /proc/sys and /sys to be writable, and with v1 to see
    v1."""
    writable = {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"}
    return writable if unified else {**writable, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "0"}


def boot(host: LabHost, directory: Path, devices: Sequence[str] = ()) -> None:
    """Start the host, whose overlay is mounted and which has no processes."""
    unified = cgroups.unified_only()
    for name in ("docker", "containerd"):
        (directory / name).mkdir(exist_ok=True)
    nspawn = cgroups.entering(
        cgroups.create(host.name), nspawn_argv(host, directory, unified=unified, devices=devices)
    )
    view = directory / "cgroup"
    if not unified and not is_mounted(view):
        cgroups.mount_view(host.name, view)
    keeper = ["sh", "-c", _AGAIN_ON_REBOOT, "sh", *nspawn]
    start(
        cgroups.entering(cgroups.create(_keeper(host)), keeper),
        log=directory / "console.log",
        env=nspawn_environment(unified=unified),
    )
    # Wait until the host's first process has entered its group. A host that fails at once may be
    # missed here; `wait_for_ssh` reports it.
    deadline = time.monotonic() + deadlines.LAB_POWER
    while not is_running(host) and time.monotonic() < deadline:
        time.sleep(0.01)


def halt(host: LabHost, directory: Path) -> bool:
    """Kill the host at once, like a power loss; its disk stays. Return whether it was running."""
    ran = [cgroups.kill_all(group) for group in (_keeper(host), host.name)]
    unmount_under(directory / "cgroup")
    for group in (_keeper(host), host.name):
        cgroups.remove(group)
    # Files that nspawn would have removed itself, had it not been killed.
    root = directory / "root"
    if root.is_dir():
        status = root.stat()
        (RUNTIME / "locks" / f"inode-{status.st_dev}:{status.st_ino}").unlink(missing_ok=True)
    # From systemd 256 on, the second one is a mount, with which nspawn refuses to start.
    for kind in ("propagate", "unix-export"):
        left = RUNTIME / kind / host.name
        unmount_under(left)
        if left.is_dir():
            left.rmdir()
    return any(ran)


def is_running(host: LabHost) -> bool:
    """Whether the host is powered on. During a reboot only its keeper is running."""
    return bool(cgroups.members(_keeper(host)) | cgroups.members(host.name))


def _keeper(host: LabHost) -> str:
    """The group of the shell that waits for nspawn. It is outside the host's group, since in cgroup
    v2 a group with subgroups cannot have processes."""
    return f"{host.name}-keeper"
