"""Check the container engine, Python, and free space for the image. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import ENGINE_ROOT, HostFacts
from clusterctl.inventory.model import Host
from clusterctl.transport.python import MISSING
from clusterctl.units import GIB

# The containerd image store keeps compressed layers beside the unpacked ones: 10 to 12 GB for
# vLLM's 25 GB
STORE_FACTOR = 1.5

# Default runtimes that can start a node; gVisor and Kata hide the host's devices
USUAL_RUNTIMES = frozenset({"", "runc", "crun", "nvidia"})

SLACK = 1 * GIB  # For the engine's own files and the container's


def engine_problems(
    host: Host, facts: HostFacts, *, brought: bool = False
) -> Iterator[RequirementsNotMet]:
    """Yield a problem for an unusable engine, and for a host where none can be installed.

    brought  the inventory names a package bundle, which may have Docker's static archive: that
             needs no package manager
    """
    reason = _unusable(facts, brought=brought) or _no_control_groups(facts)
    if reason:
        summary, hint = reason
        yield RequirementsNotMet(summary, host=host.name, hint=hint, detail=facts.engine.error)


def _unusable(facts: HostFacts, *, brought: bool) -> tuple[str, str] | None:
    """Return cause and fix, or None if the engine can be used or installed."""
    engine = facts.engine
    if not engine.installed:
        return None if brought or _is_known(facts) else _no_engine(facts)
    if engine.podman:
        remove = "apt-get remove" if _is_debian(facts) else "dnf remove"
        return "its `docker` is Podman under another name", f"sudo {remove} podman-docker"
    if engine.snap:
        return (
            "its Docker is a snap, which sees neither /etc nor most data directories",
            "sudo snap remove docker",
        )
    if engine.rootless:
        return (
            "its Docker runs rootless: `--network host` is not the host's network there",
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
            f"its Docker starts containers by {engine.default_runtime}, which does not give them "
            "the host's devices",
            'remove "default-runtime" from /etc/docker/daemon.json; sudo systemctl restart docker',
        )
    if engine.hung:
        return "its Docker daemon does not answer", "sudo systemctl restart docker"
    return None


def _no_control_groups(facts: HostFacts) -> tuple[str, str] | None:
    if facts.device_cgroup:
        return None
    return (
        "has no control groups for devices, without which no container engine starts (neither "
        "cgroup v2 nor the v1 controller `devices` is mounted)",
        "mount -t cgroup2 none /sys/fs/cgroup; or a kernel with CONFIG_CGROUP_DEVICE and "
        "CONFIG_CGROUP_BPF",
    )


def python_problems(
    host: Host, facts: HostFacts, *, brought: bool = False
) -> Iterator[RequirementsNotMet]:
    """Yield a problem if the host lacks Python and bootstrap cannot install it there."""
    if not facts.python3 and not (brought or _is_known(facts)):
        yield RequirementsNotMet(
            f"has {MISSING} ({facts.python_words}), and clusterctl installs one only where there "
            f"is apt-get or dnf, not on {facts.os.pretty or facts.os.id}",
            host=host.name,
            hint="install one there, on root's PATH as python3 or python3.9 and later",
        )


def python_notes(facts: HostFacts) -> Iterator[str]:
    if not facts.python3:
        yield (f"has {MISSING} ({facts.python_words}): clusterctl bootstrap installs it")


def _is_debian(facts: HostFacts) -> bool:
    return bool({facts.os.id, *facts.os.like} & {"debian", "ubuntu"})


def _is_known(facts: HostFacts) -> bool:
    """Whether this is Debian, RHEL or a derivative; true for a system that could not be
    identified."""
    names = {facts.os.id, *facts.os.like}
    return not facts.os.id or _is_debian(facts) or bool(names & {"rhel", "centos", "fedora"})


def _no_engine(facts: HostFacts) -> tuple[str, str]:
    return (
        "has no container engine, and clusterctl installs one only where there is apt-get or dnf, "
        f"not on {facts.os.pretty or facts.os.id}",
        "bring Docker's static archive (docs/offline.md); or install Docker there and start it: "
        "systemctl enable --now docker",
    )


def room_problems(
    host: Host, facts: HostFacts, image_size: int | None, usual_image: int
) -> Iterator[RequirementsNotMet]:
    """Yield a problem if the disk of the engine's images is too small for the image."""
    root = facts.engine.data_root or ENGINE_ROOT
    disk = facts.disk(root)
    needed, source = needed_room(facts, image_size, usual_image)
    if disk is not None and disk.free < needed:
        yield RequirementsNotMet(
            f"{disk.free / GIB:.1f} GiB are free at {root}, and the image needs "
            f"{needed / GIB:.0f} GiB ({source})",
            host=host.name,
            hint=f"make room: docker system prune --all; df -h {root}; or move data-root",
        )


def needed_room(facts: HostFacts, image_size: int | None, usual_image: int) -> tuple[int, str]:
    """Return the bytes needed, and how they were determined."""
    if image_size is None:
        return usual_image, "its size is not known; this is the usual one"
    if facts.engine.containerd_store:
        return round(image_size * STORE_FACTOR) + SLACK, "measured, unpacked and packed"
    return image_size + SLACK, "measured"


def engine_notes(facts: HostFacts) -> Iterator[str]:
    engine = facts.engine
    if engine.installed and not (engine.running or engine.podman or engine.hung):
        yield f"Docker is installed but not running: {engine.error}"
    if facts.runtimes:
        yield (
            f"{', '.join(facts.runtimes)} is installed too: Docker does not see its containers, "
            "nor the GPUs and ports that they use"
        )
    if facts.cgroup_version == 1:
        yield "cgroup version 1: Docker and Ray work with it, their newer versions will not"
