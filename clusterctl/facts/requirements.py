"""Check whether hosts meet the requirements of the cluster that the inventory declares. Pure.

`problems` stop a bootstrap; `notes` are only printed. Both check every host and report everything,
so that one round of repairs is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.cluster_requirements import cluster_notes, cluster_problems
from clusterctl.facts.engine_requirements import (
    engine_notes,
    engine_problems,
    python_notes,
    python_problems,
    room_problems,
)
from clusterctl.facts.model import ENGINE_ROOT, HostFacts
from clusterctl.facts.network_requirements import (
    name_notes,
    network_problems,
    port_problems,
    rdma_notes,
)
from clusterctl.inventory.model import Host, Inventory
from clusterctl.transport.credentials import SUDO_PASSWORD
from clusterctl.units import GIB

# Bytes. Ray's object store takes 1 GB of /dev/shm, NCCL and vLLM's queues some more: containers
# share the host's (`--ipc host`). Docker's 64 MB cause a bus error (vllm #1710, nccl #290).
SHM_NEEDED = 3 * GIB // 2

# Open files. Ray opens some per worker and per peer and dies if it cannot (ray #13045); a
# container's limit cannot exceed the engine's hard limit.
NOFILE_WANTED = 65536

# Ray itself warns below 8192; with 1024 the raylet ends by SIGABRT (ray #13045)
NOFILE_NEEDED = 4096

# Bytes that must be free for logs, caches and node files: a full disk stops Ray (it spills and
# logs), and the engine
DISK_NEEDED = GIB


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
    """Yield one problem for each full file system, however many of the paths are on it."""
    told: set[tuple[int, int]] = set()
    for path in ("/", facts.engine.data_root or ENGINE_ROOT, inventory.models):
        disk = facts.disk(path)
        if disk is None or disk.free >= DISK_NEEDED or (disk.total, disk.free) in told:
            continue
        told.add((disk.total, disk.free))
        yield RequirementsNotMet(
            f"the disk of {path} is full: {disk.free / GIB:.1f} GiB of {disk.total / GIB:.1f} "
            "GiB are free",
            host=host.name,
            hint=f"make room: docker system prune; sudo du -xhd2 {path} | sort -h | tail",
        )


SUPPORTED_ARCHITECTURES = ("x86_64", "aarch64")  # Architectures of vLLM's images


class DeviceRequirements(Protocol):
    """Requirements of an accelerator, implemented by a layer above, which knows its devices."""

    @property
    def usual_image(self) -> int:
        """Bytes to assume for an image of unknown size."""

    def problems(
        self,
        inventory: Inventory,
        host: Host,
        facts: HostFacts,
        image_env: Mapping[str, str] | None,
    ) -> Iterator[RequirementsNotMet]:
        """Yield the reasons why `host` cannot provide the devices declared for it."""

    def notes(self, inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
        """Yield notes for the user about the devices of one host."""

    def notes_between(self, facts: Mapping[str, HostFacts]) -> Iterator[str]:
        """Yield notes about differences between hosts."""


def problems(
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    devices: DeviceRequirements,
    *,
    ours: Collection[str] = (),
    with_image: Collection[str] = (),
    image_size: int | None = None,
    image_env: Mapping[str, str] | None = None,
) -> tuple[RequirementsNotMet, ...]:
    """Return every problem of every host, in the inventory's order, then those between hosts.

    facts       by host name; hosts without facts, such as those that do not answer, are skipped
    ours        hosts that run our node container, where Ray's ports are used by our own Ray
    with_image  hosts that have the image and need no room for it, besides those in `ours`
    image_size  bytes of the image, if known
    image_env   the image's environment variables about CUDA, if a host has the image
    """
    of_hosts = (
        problem
        for host in inventory.hosts
        if host.name in facts
        for problem in (
            *_host_problems(inventory, host, facts[host.name], devices, image_env),
            *(() if host.name in ours else port_problems(inventory, host, facts[host.name])),
            *_disk_problems(
                inventory,
                host,
                facts[host.name],
                image_size,
                devices.usual_image,
                has_image=host.name in ours or host.name in with_image,
            ),
        )
    )
    return (*of_hosts, *cluster_problems(inventory, facts))


def notes(
    inventory: Inventory, facts: Mapping[str, HostFacts], devices: DeviceRequirements
) -> tuple[str, ...]:
    """Return one sentence per note for the user, with the host's name. Nothing depends on notes."""
    of_hosts = (
        f"{host.name}: {text}"
        for host in inventory.hosts
        if host.name in facts
        for text in _host_notes(inventory, host, facts[host.name], devices)
    )
    return (*of_hosts, *devices.notes_between(facts), *cluster_notes(inventory, facts))


def _host_problems(
    inventory: Inventory,
    host: Host,
    facts: HostFacts,
    devices: DeviceRequirements,
    image_env: Mapping[str, str] | None,
) -> Iterator[RequirementsNotMet]:
    yield from _root_problems(host, facts)
    yield from _architecture_problems(host, facts)
    yield from network_problems(inventory, host, facts)
    yield from devices.problems(inventory, host, facts, image_env)
    brought = inventory.packages.offline is not None
    yield from engine_problems(host, facts, brought=brought)
    yield from python_problems(host, facts, brought=brought)
    yield from limit_problems(host, facts)


def _disk_problems(
    inventory: Inventory,
    host: Host,
    facts: HostFacts,
    image_size: int | None,
    usual_image: int,
    *,
    has_image: bool,
) -> Iterator[RequirementsNotMet]:
    """Yield full disks, else missing room for the image: a full disk has none either."""
    full = tuple(full_disks(inventory, host, facts))
    yield from full
    if not full and not has_image:
        yield from room_problems(host, facts, image_size, usual_image)


def _root_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    if not facts.root:
        user = facts.user or "the user"
        yield RequirementsNotMet(
            f"{user} is not root and cannot become root by sudo",
            host=host.name,
            hint=f"as root there: usermod -aG sudo {user}; or set {SUDO_PASSWORD}, "
            "or ssh.user: root",
            detail=facts.sudo_error,
        )


def _architecture_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    machine = facts.os.architecture
    if machine and machine not in SUPPORTED_ARCHITECTURES:
        yield RequirementsNotMet(
            f"its processor is {machine}; images exist for {' and '.join(SUPPORTED_ARCHITECTURES)}",
            host=host.name,
            hint=f"take {host.name} out of the inventory",
        )


def _host_notes(
    inventory: Inventory, host: Host, facts: HostFacts, devices: DeviceRequirements
) -> Iterator[str]:
    yield from name_notes(facts)
    yield from rdma_notes(inventory, host, facts)
    yield from devices.notes(inventory, host, facts)
    yield from engine_notes(facts)
    yield from python_notes(facts)
    yield from limit_notes(facts)
    yield from (f"not known: {text}" for text in facts.unknown)
