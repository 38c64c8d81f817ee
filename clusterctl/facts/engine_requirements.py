"""The container engine and room for the image. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import ENGINE_ROOT, EngineFacts, HostFacts
from clusterctl.inventory.model import Host, Inventory

_GIB = 2**30

USUAL_IMAGE = {"nvidia": 28 * _GIB, "cpu": 6 * _GIB}
"""Room for an image that could not be measured. vLLM's own unpacks to 28.6 GB (vllm #22377),
26.6 GiB; the CPU image of the lab to 2.6 GB, and its base comes beside it."""

STORE_FACTOR = 1.5
"""The containerd image store keeps compressed layers beside the unpacked ones: 10 to 12 GB
for 25 GB of vLLM's."""

SLACK = 1 * _GIB
"""For the engine's own files and the container's."""


def engine_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    """Engines that are there and cannot be used, and hosts where none can be installed."""
    reason = _unusable(facts.engine, facts)
    if reason:
        summary, hint = reason
        yield RequirementsNotMet(summary, host=host.name, hint=hint, detail=facts.engine.error)


def _unusable(engine: EngineFacts, facts: HostFacts) -> tuple[str, str] | None:
    """Cause and fix."""
    if not engine.installed:
        return None if _is_debian(facts) else _no_engine(facts)
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
    if engine.hung:
        return "its Docker daemon does not answer", "sudo systemctl restart docker"
    return None


def _is_debian(facts: HostFacts) -> bool:
    """Debian and what is made from it; an unknown system is given the benefit of the doubt."""
    names = {facts.os.id, *facts.os.like}
    return not facts.os.id or bool(names & {"debian", "ubuntu"})


def _no_engine(facts: HostFacts) -> tuple[str, str]:
    return (
        f"has no container engine, and clusterctl installs one only on Debian and Ubuntu, not on "
        f"{facts.os.pretty or facts.os.id}",
        "install Docker there: sudo dnf install docker-ce; sudo systemctl enable --now docker",
    )


def room_problems(
    inventory: Inventory, host: Host, facts: HostFacts, image_size: int | None
) -> Iterator[RequirementsNotMet]:
    """Too little disk where the engine keeps images, for a host that is to get one."""
    root = facts.engine.data_root or ENGINE_ROOT
    disk = facts.disk(root)
    needed, source = needed_room(inventory, facts, image_size)
    if disk is not None and disk.free < needed:
        yield RequirementsNotMet(
            f"{disk.free / _GIB:.1f} GiB are free at {root}, and the image needs "
            f"{needed / _GIB:.0f} GiB ({source})",
            host=host.name,
            hint=f"make room: docker system prune --all; df -h {root}; or move data-root",
        )


def needed_room(inventory: Inventory, facts: HostFacts, image_size: int | None) -> tuple[int, str]:
    """Bytes, and where the number is from."""
    if image_size is None:
        return USUAL_IMAGE[inventory.accelerator], "its size is not known; this is the usual one"
    if facts.engine.containerd_store:
        return round(image_size * STORE_FACTOR) + SLACK, "measured, unpacked and packed"
    return image_size + SLACK, "measured"


def engine_notes(facts: HostFacts) -> Iterator[str]:
    engine = facts.engine
    if engine.installed and not (engine.running or engine.podman or engine.hung):
        yield f"Docker is installed and does not run: {engine.error}"
    if facts.cgroup_version == 1:
        yield "cgroup version 1: Docker and Ray work with it, their newer versions will not"
