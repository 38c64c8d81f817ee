"""Check whether hosts meet the requirements of the cluster that the inventory declares. Pure.

`problems` stop a bootstrap; `notes` are only printed. Both check every host and report everything,
so that one round of repairs is enough. Functions for one aspect of a host yield problems without
the host's name, which `problems` adds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.cluster_requirements import cluster_notes, cluster_problems
from clusterctl.facts.container_networks import (
    container_network_notes,
    container_network_problems,
)
from clusterctl.facts.model import ENGINE_ROOT, EngineFacts, HostFacts
from clusterctl.facts.network_requirements import (
    ephemeral_notes,
    name_notes,
    network_problems,
    port_problems,
    public_notes,
    rdma_notes,
)
from clusterctl.inventory.model import Host, Inventory
from clusterctl.transport.credentials import SUDO_PASSWORD
from clusterctl.transport.python import MISSING
from clusterctl.units import GIB

# Bytes. Ray's object store takes 1 GB of /dev/shm, NCCL and vLLM's queues some more: containers
# share the host's (`--ipc host`). Docker's 64 MB cause a bus error (vllm #1710, nccl #290).
SHM_NEEDED = 3 * GIB // 2

# Bytes of it without which no engine starts: NCCL takes up to 33 MB for each peer.
SHM_LEAST = 64 * 2**20

# Open files. Ray opens some per worker and per peer and dies if it cannot (ray #13045); a
# container's limit cannot exceed the engine's hard limit.
NOFILE_WANTED = 65536

# Ray itself warns below 8192; with 1024 the raylet ends by SIGABRT (ray #13045)
NOFILE_NEEDED = 4096

# Bytes that must be free for logs, caches and node files: a full disk stops Ray (it spills and
# logs), and the engine
DISK_NEEDED = GIB

# The containerd image store keeps compressed layers beside the unpacked ones: 10 to 12 GB for
# vLLM's 25 GB
STORE_FACTOR = 1.5

# Docker's first release that registers CDI before it starts containers again: moby pull request
# 49990, merged after 28.1.1 (https://github.com/moby/moby/pull/49990, read 2026-11-26)
DEVICES_FIRST = (28, 2)

# Of the Engine API that its driver speaks, 1.41 (docs/decisions/0032-oldest-releases.md)
OLDEST_DOCKER = (20, 10)

SLACK = 1 * GIB  # For the engine's own files and the container's

# Default runtimes that can start a node; gVisor and Kata hide the host's devices
USUAL_RUNTIMES = frozenset({"", "runc", "crun", "nvidia"})

SUPPORTED_ARCHITECTURES = ("x86_64", "aarch64")  # Architectures of vLLM's images


class DeviceRequirements(Protocol):
    """An accelerator's requirements for hosts, implemented in `accelerators`, one layer above."""

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
    found: list[RequirementsNotMet] = []
    # A bundle may have Docker's static archive, which needs no package manager.
    brought = inventory.packages.offline is not None
    used = {port for of_host in facts.values() for port in of_host.listening_ports}
    for host in inventory.hosts:
        if host.name not in facts:
            continue
        its, is_ours = facts[host.name], host.name in ours
        of_host = [
            *_root_and_processor_problems(host, its),
            *network_problems(host, its),
            *devices.problems(inventory, host, its, image_env),
            *_software_problems(its, brought=brought),
            *_limit_problems(its),
            # Without root, our own container is not seen, whose Ray may use the ports.
            *(port_problems(inventory, host, its, used) if its.root and not is_ours else ()),
        ]
        full = list(_full_disks(inventory, its))
        # A full disk has no room for the image either.
        if not full and not is_ours and host.name not in with_image:
            full = list(_room_problems(its, image_size, devices.usual_image))
        for problem in (*of_host, *full):
            problem.host = host.name
            found.append(problem)
    return (
        *found,
        *cluster_problems(inventory, facts),
        *container_network_problems(inventory, facts),
    )


def notes(
    inventory: Inventory, facts: Mapping[str, HostFacts], devices: DeviceRequirements
) -> tuple[str, ...]:
    """Return notes for the user, a sentence each, with the host's name. Nothing depends on them."""
    of_hosts = (
        f"{host.name}: {text}"
        for host in inventory.hosts
        if (its := facts.get(host.name))
        for text in (
            *name_notes(its),
            *rdma_notes(inventory, host, its),
            *public_notes(inventory, its),
            *ephemeral_notes(inventory, host, its),
            *devices.notes(inventory, host, its),
            *_software_notes(its, inventory.file),
            *(f"not known: {text}" for text in its.unknown),
        )
    )
    return (
        *of_hosts,
        *devices.notes_between(facts),
        *cluster_notes(inventory, facts),
        *container_network_notes(inventory, facts),
    )


def _root_and_processor_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    if not facts.root:
        user = facts.user or "the user"
        yield RequirementsNotMet(
            f"{user} is not root and cannot become root with sudo",
            hint=f"as root on it: usermod -aG sudo {user}; or set {SUDO_PASSWORD}, or ssh.user: "
            "root",
            detail=facts.sudo_error,
        )
    machine = facts.os.architecture
    if machine and machine not in SUPPORTED_ARCHITECTURES:
        yield RequirementsNotMet(
            f"its processor is {machine}; images exist for {' and '.join(SUPPORTED_ARCHITECTURES)}",
            hint=f"remove {host.name} from the inventory",
        )


def _software_problems(facts: HostFacts, *, brought: bool) -> Iterator[RequirementsNotMet]:
    """Yield a problem for an unusable engine, and for a missing engine or Python that bootstrap
    cannot install."""
    unusable = _unusable_engine(facts, brought=brought)
    if unusable is None and not facts.device_cgroup:
        unusable = (
            "has no control groups for devices, which container engines need to start (neither "
            "cgroup v2 nor the v1 controller `devices` is mounted)",
            "mount -t cgroup2 none /sys/fs/cgroup; or a kernel with CONFIG_CGROUP_DEVICE and "
            "CONFIG_CGROUP_BPF",
        )
    if unusable:
        yield RequirementsNotMet(unusable[0], hint=unusable[1], detail=facts.engine.error)
    if not facts.python3 and not (brought or _has_known_packages(facts)):
        yield RequirementsNotMet(
            f"has {MISSING} ({facts.python_words}), and clusterctl installs one only where there "
            f"is apt-get or dnf, not on {facts.os.pretty or facts.os.id}",
            hint="install one, on root's PATH as python3, python3.9 or later",
        )


def _unusable_engine(facts: HostFacts, *, brought: bool) -> tuple[str, str] | None:
    """Return cause and fix, or None if the engine can be used or installed."""
    engine = facts.engine
    if not engine.installed:
        if brought or _has_known_packages(facts):
            return None
        return (
            "has no container engine, and clusterctl installs one only where there is apt-get or "
            f"dnf, not on {facts.os.pretty or facts.os.id}",
            "bring Docker's static archive (docs/offline.md); or install Docker there and start "
            "it: systemctl enable --now docker",
        )
    if engine.podman:
        remove = "apt-get remove" if facts.os.debian_like else "dnf remove"
        return "its `docker` is Podman under another name", f"sudo {remove} podman-docker"
    if engine.snap:
        return (
            "its Docker is a snap, which sees neither /etc nor most data directories",
            "sudo snap remove docker",
        )
    if engine.rootless:
        return (
            "its Docker runs rootless, where `--network host` is not the host's network",
            "dockerd-rootless-setuptool.sh uninstall; sudo systemctl enable --now docker",
        )
    if engine.desktop:
        return (
            "its Docker is Docker Desktop, whose containers run in a virtual machine without the "
            "host's network and GPUs",
            "sudo apt-get remove docker-desktop; bootstrap then installs the engine itself",
        )
    if engine.remapped:
        return (
            "its Docker remaps users (userns-remap), which rules out host networking and IPC",
            'remove "userns-remap" from /etc/docker/daemon.json; sudo systemctl restart docker',
        )
    if engine.default_runtime not in USUAL_RUNTIMES:
        return (
            f"its Docker starts containers with {engine.default_runtime}, which does not give "
            "them the host's devices",
            'remove "default-runtime" from /etc/docker/daemon.json; sudo systemctl restart docker',
        )
    if engine.hung:
        return "its Docker daemon does not answer", "sudo systemctl restart docker"
    if engine.running and () < _release(engine) < OLDEST_DOCKER:
        apt = r"apt-get remove '^docker(\.io|-ce)$'"
        return (
            f"its Docker {engine.version} is older than 20.10, the oldest that clusterctl uses",
            f"upgrade it, or sudo {apt if facts.os.debian_like else 'dnf remove docker-ce'}, which "
            "stops its containers; then bootstrap installs a newer one",
        )
    return None


def _release(engine: EngineFacts) -> tuple[int, ...]:
    """Return the first two numbers of the engine's version: (20, 10) of 20.10.24+dfsg1."""
    return tuple(int(number) for number in re.findall(r"\d+", engine.version)[:2])


def _has_known_packages(facts: HostFacts) -> bool:
    """Whether this is Debian, RHEL or a derivative; true for a system that could not be
    identified."""
    names = {facts.os.id, *facts.os.like}
    return not facts.os.id or facts.os.debian_like or bool(names & {"rhel", "centos", "fedora"})


def shm_full(facts: HostFacts) -> RequirementsNotMet | None:
    """Return the problem of a host whose shared memory is full. Running programs continue until
    they need some; nothing can start."""
    least = min(SHM_LEAST, facts.shm // 16)  # A small one is another problem: see `check`
    if facts.shm_free is None or facts.shm_free >= least:
        return None
    return RequirementsNotMet(
        f"/dev/shm is full: {facts.shm_free // 2**20} of {facts.shm // 2**20} MiB are free, and "  # noqa: S108
        "no engine can start there",
        hint="find out what fills it, and remove what no process has open: ls -lhS /dev/shm; "
        "sudo fuser -v /dev/shm/*",
    )


def _limit_problems(facts: HostFacts) -> Iterator[RequirementsNotMet]:
    if full := shm_full(facts):
        yield full
    if 0 < facts.shm < SHM_NEEDED:
        yield RequirementsNotMet(
            f"/dev/shm has {facts.shm // 2**20} MiB, and Ray and NCCL need "  # noqa: S108
            f"{SHM_NEEDED // 2**20} MiB of shared memory",
            hint="sudo mount -o remount,size=50% /dev/shm; to keep it, in /etc/fstab: "
            "tmpfs /dev/shm tmpfs size=50% 0 0",
        )
    if 0 < facts.nofile_hard < NOFILE_NEEDED:
        yield RequirementsNotMet(
            f"at most {facts.nofile_hard} open files are allowed, and Ray needs {NOFILE_NEEDED}",
            hint="sudo mkdir -p /etc/systemd/system/docker.service.d; printf "
            "'[Service]\\nLimitNOFILE=1048576\\n' | sudo tee "
            "/etc/systemd/system/docker.service.d/nofile.conf; sudo systemctl daemon-reload; "
            "sudo systemctl restart docker. If Docker is not installed yet: "
            "/etc/security/limits.conf",
        )


def _image_root(facts: HostFacts) -> str:
    """Return the directory where the engine unpacks images: containerd's with the containerd image
    store, whatever data-root is (moby #50517)."""
    if facts.engine.containerd_store:
        return facts.containerd_root
    return facts.engine.data_root or ENGINE_ROOT


def _full_disks(inventory: Inventory, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    """Yield one problem per full file system, however many of the paths are on it."""
    reported: set[tuple[int, int]] = set()
    roots = dict.fromkeys((_image_root(facts), facts.engine.data_root or ENGINE_ROOT))
    for path in ("/", *roots, inventory.models):
        disk = facts.disk(path)
        if disk is None or disk.free >= DISK_NEEDED or (disk.total, disk.free) in reported:
            continue
        reported.add((disk.total, disk.free))
        yield RequirementsNotMet(
            f"the disk of {path} is full: {disk.free / GIB:.1f} GiB of {disk.total / GIB:.1f} "
            "GiB are free",
            hint=f"make room: docker system prune; sudo du -xhd2 {path} | sort -h | tail",
        )


def _room_problems(
    facts: HostFacts, image_size: int | None, usual_image: int
) -> Iterator[RequirementsNotMet]:
    """Yield a problem if the disk of the engine's images is too small for the image."""
    if image_size is None:
        needed, source = usual_image, "its size is not known; this is the usual one"
    elif facts.engine.containerd_store:
        needed, source = round(image_size * STORE_FACTOR) + SLACK, "measured, unpacked and packed"
    else:
        needed, source = image_size + SLACK, "measured"
    root = _image_root(facts)
    disk = facts.disk(root)
    if disk is not None and disk.free < needed:
        move = "move data-root (/etc/docker/daemon.json)"
        if facts.engine.containerd_store:
            move = (
                "move containerd's root, which holds images here, not data-root: root = "
                "'/DISK/containerd' in /etc/containerd/config.toml"
            )
        yield RequirementsNotMet(
            f"{disk.free / GIB:.1f} GiB are free at {root}, and the image needs "
            f"{needed / GIB:.0f} GiB ({source})",
            hint=f"make room: docker system prune --all; df -h {root}; or {move}",
        )


def _software_notes(facts: HostFacts, file: str) -> Iterator[str]:
    """Yield notes about the engine, Python and limits."""
    engine = facts.engine
    if engine.closed:
        yield "not checked without root: Docker, its containers and images, and Ray's ports"
    elif engine.installed and not (engine.running or engine.podman or engine.hung):
        yield f"Docker is installed but not running: {engine.error}"
    if engine.cdi_spec_dirs and facts.cdi_specs and _release(engine) < DEVICES_FIRST:
        yield (
            f"Docker {engine.version} does not give containers their GPUs when it restarts them by "
            "itself (Docker 28.2 does): after a reboot "
            + (
                "a unit that bootstrap adds to systemd starts the node container"
                if facts.systemd
                else f"run clusterctl bootstrap {file}"
            )
        )
    if facts.runtimes:
        yield (
            f"{', '.join(facts.runtimes)} is installed too: Docker does not see its containers, "
            "nor the GPUs and ports that they use"
        )
    if facts.cgroup_version == 1:
        yield "cgroup version 1: Docker and Ray still work with it, but newer versions will not"
    if facts.selinux == "enforcing":
        yield (
            "SELinux is enforcing, which is fine: the node container's files need no labels; to "
            "see what it denies: sudo ausearch -m avc -ts recent"
        )
    if not facts.python3:
        yield f"has {MISSING} ({facts.python_words}): clusterctl bootstrap installs it"
    if NOFILE_NEEDED <= facts.nofile_hard < NOFILE_WANTED:
        yield (
            f"at most {facts.nofile_hard} open files, {NOFILE_WANTED} are better: raise the "
            "hard limit (LimitNOFILE=) of docker.service"
        )
