"""What stands in the way of the cluster that the inventory promises. Pure.

`problems` stop a bootstrap; `notes` are told and passed over. Both look at every host and give
all there is, so that one round of repairs is enough.
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


SUPPORTED_ARCHITECTURES = ("x86_64", "aarch64")  # Those that vLLM's images are made for


class DeviceRequirements(Protocol):
    """What an accelerator asks of hosts: it stands above, and knows its own devices."""

    @property
    def usual_image(self) -> int:
        """Bytes of room for an image that could not be measured."""

    def problems(
        self,
        inventory: Inventory,
        host: Host,
        facts: HostFacts,
        image_env: Mapping[str, str] | None,
    ) -> Iterator[RequirementsNotMet]:
        """What keeps `host` from giving the devices that it promises."""

    def notes(self, inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
        """What a user should know of the devices of one host."""

    def notes_between(self, facts: Mapping[str, HostFacts]) -> Iterator[str]:
        """How hosts differ."""


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
    """Every problem of every host, in the inventory's order, then those between hosts.

    facts       by the inventory's names; a host without any, such as one that does not answer,
                is passed over
    ours        hosts that run our node container: Ray's ports are our own Ray's there
    with_image  hosts that have the image: it needs no room there. Those in `ours` count too
    image_size  bytes, where the image could be measured
    image_env   what the image says of the CUDA it needs, where a host has it
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
    """What a user should know and nothing depends on: a sentence each, hosts named."""
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
    """A disk that is full has no room for an image either."""
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
