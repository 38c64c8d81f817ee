"""Booting a host: systemd-nspawn on the host's overlay, in its namespace, in its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl.lab import cgroups
from clusterctl.lab.layout import LabHost
from clusterctl.lab.local import start
from clusterctl.lab.mounts import is_mounted, unmount_under

NAMESPACES = Path("/run/netns")

# A fixed script: what varies comes as arguments. A process must enter its groups itself,
# before it becomes nspawn; from outside there is a moment in which it is not there yet.
_ENTER_GROUPS = 'until [ "$1" = -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'


def nspawn_argv(host: LabHost, directory: Path, *, unified: bool) -> list[str]:
    """The command that boots a host; `unified` is a machine with cgroup v2 alone."""
    # overlay2, Docker's storage, does not sit on an overlay: its files go to the disk below.
    binds = [(directory / "docker", "/var/lib/docker"),
             (directory / "containerd", "/var/lib/containerd")]  # fmt: skip
    if not unified:
        binds.append((directory / "cgroup", "/sys/fs/cgroup"))
    return [
        "systemd-nspawn",
        f"--directory={directory / 'root'}",
        f"--machine={host.name}",
        f"--network-namespace-path={NAMESPACES / host.namespace}",
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
    files = cgroups.create(host.name)
    view = directory / "cgroup"
    if not unified and not is_mounted(view):
        cgroups.mount_view(host.name, view)
    start(
        in_groups(files, nspawn_argv(host, directory, unified=unified)),
        log=directory / "console.log",
        env=nspawn_environment(unified=unified),
    )


def halt(host: LabHost, directory: Path) -> bool:
    """End the host at once, as a power loss does; whether it ran. Its disk stays."""
    ran = cgroups.kill_all(host.name)
    unmount_under(directory / "cgroup")
    cgroups.remove(host.name)
    return ran
