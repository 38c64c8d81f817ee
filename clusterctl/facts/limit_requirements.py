"""Shared memory, open files and room on disks: what serving runs into later, told before. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import ENGINE_ROOT, HostFacts
from clusterctl.inventory.model import Host, Inventory

_GIB = 2**30

# Bytes. Ray's object store takes 1 GB of /dev/shm, NCCL and vLLM's queues some more: containers
# share the host's (`--ipc host`). Docker's 64 MB end in a bus error (vllm #1710, nccl #290).
SHM_NEEDED = 3 * _GIB // 2

# Open files. Ray opens some per worker and per peer and dies when it may not (ray #13045); a
# container's limit cannot pass the hard one of the engine.
NOFILE_WANTED = 65536

# Ray itself warns below 8192; with 1024 the raylet ends by SIGABRT (ray #13045)
NOFILE_NEEDED = 4096

# Bytes that must be free for logs, caches and node files: a full disk ends Ray (it spills and
# logs), and the engine
DISK_NEEDED = _GIB


def limit_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    if 0 < facts.shm < SHM_NEEDED:
        yield RequirementsNotMet(
            f"/dev/shm has {facts.shm // 2**20} MiB, and Ray and NCCL need "  # noqa: S108
            f"{SHM_NEEDED // 2**20} MiB of shared memory",
            host=host.name,
            hint="sudo mount -o remount,size=50% /dev/shm; to keep it, in /etc/fstab: "
            "tmpfs /dev/shm tmpfs size=50% 0 0",
        )
    if 0 < facts.nofile_hard < NOFILE_NEEDED:
        yield RequirementsNotMet(
            f"at most {facts.nofile_hard} open files are allowed, and Ray needs {NOFILE_NEEDED}",
            host=host.name,
            hint="sudo mkdir -p /etc/systemd/system/docker.service.d; "
            "printf '[Service]\\nLimitNOFILE=1048576\\n' | "
            "sudo tee /etc/systemd/system/docker.service.d/nofile.conf; "
            "sudo systemctl daemon-reload; sudo systemctl restart docker. Before Docker is there: "
            "/etc/security/limits.conf",
        )


def limit_notes(facts: HostFacts) -> Iterator[str]:
    if NOFILE_NEEDED <= facts.nofile_hard < NOFILE_WANTED:
        yield (
            f"at most {facts.nofile_hard} open files, {NOFILE_WANTED} are better: raise the "
            "hard limit (LimitNOFILE=) of docker.service"
        )


def full_disks(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    """One problem for each file system, whichever of the paths lie on it."""
    told: set[tuple[int, int]] = set()
    for path in ("/", facts.engine.data_root or ENGINE_ROOT, inventory.models):
        disk = facts.disk(path)
        if disk is None or disk.free >= DISK_NEEDED or (disk.total, disk.free) in told:
            continue
        told.add((disk.total, disk.free))
        yield RequirementsNotMet(
            f"the disk of {path} is full: {disk.free / _GIB:.1f} GiB of {disk.total / _GIB:.1f} "
            "GiB are free",
            host=host.name,
            hint=f"make room: docker system prune; sudo du -xhd2 {path} | sort -h | tail",
        )
