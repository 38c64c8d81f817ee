"""Compare the GPUs that the inventory declares with those present. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.cuda import needed_driver, no_code_for, too_old
from clusterctl.facts.gpu_causes import why_no_gpu
from clusterctl.facts.gpu_faults import describe_processes, foreign, gpu_faults, xid_notes
from clusterctl.facts.model import GpuFacts, GpuReport, HostFacts
from clusterctl.facts.network_requirements import usable_devices
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.units import GIB

# Fraction by which memory may differ from the declared: names are rounded, the driver keeps some.
# An L4 of "24 GiB" shows 23034 MiB (6 % less), an H200 of "141 GB" 143771 MiB.
MEMORY_TOLERANCE = 0.10

# Words that distinguish models: an RTX 3090 is not an RTX 3090 Ti
TELLING_WORDS = frozenset({"ti", "super", "laptop", "max", "mobile", "ada", "d"})


def gpu_problems(
    inventory: Inventory,
    host: Host,
    facts: HostFacts,
    image_env: Mapping[str, str] | None = None,
) -> Iterator[RequirementsNotMet]:
    """Yield problems, without the host's name; none for a host without declared GPUs. `image_env`:
    the image's environment, if some host has the image."""
    if not host.gpus:
        return
    yield from _declared_problems(inventory, host, facts)
    if not facts.gpus.gpus:
        return
    driver = facts.gpus.gpus[0].driver
    if wanted := too_old(driver, image_env or {}):
        branch = needed_driver(image_env or {})
        yield RequirementsNotMet(
            f"its driver {driver} is too old for the image, which needs {wanted}",
            hint=f"clusterctl bootstrap {inventory.file} --install-driver FILE.run with driver "
            f"{branch or 'newer'} or later; or an image for an older CUDA",
        )
    missing = (no_code_for(gpu, image_env or {}) for gpu in facts.gpus.gpus)
    for cause, fix in dict.fromkeys(found for found in missing if found):
        yield RequirementsNotMet(cause, hint=fix)
    yield from gpu_faults(facts.gpus)


def _declared_problems(
    inventory: Inventory, host: Host, facts: HostFacts
) -> Iterator[RequirementsNotMet]:
    """Yield a problem if the host lacks GPUs that the inventory declares."""
    report = facts.gpus
    declared, seen = f"the inventory declares {_count(len(host.gpus))}", len(report.gpus)
    if not seen:
        cause = why_no_gpu(facts, str(inventory.file))
        yield RequirementsNotMet(
            f"{declared}, but none can be used: {cause.what}",
            hint=cause.fix,
            detail=cause.evidence,
        )
    elif seen < min(len(host.gpus), report.pci_devices):
        yield RequirementsNotMet(
            f"{declared}, but nvidia-smi shows {seen} of the {report.pci_devices} on its PCI bus: "
            "one fell off the bus",
            hint="sudo dmesg | grep -i xid; then sudo reboot, or power it off and on",
            detail=report.error,
        )
    elif seen < len(host.gpus):
        yield RequirementsNotMet(
            f"{declared}, but the host has {seen}: {describe(report.gpus)}",
            hint=f"set gpus: {seen} in the inventory; on the host: nvidia-smi -L",
            detail=report.error,
        )
    elif missing := _missing(host.gpus, report.gpus):
        names = (
            f"{gpu.model or 'a GPU'}{f' ({_gib(gpu.memory)})' if gpu.memory is not None else ''}"
            for gpu in missing
        )
        yield RequirementsNotMet(
            f"the inventory declares {', '.join(names)}, but the host has {describe(report.gpus)}",
            hint="correct gpus in the inventory; on the host: nvidia-smi -L",
        )


def driver_notes(facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """Note drivers that differ between hosts: NCCL and CUDA work, but behave differently."""
    found: dict[str, list[str]] = {}
    for name, of in facts.items():
        for driver in {gpu.driver for gpu in of.gpus.gpus}:
            found.setdefault(driver, []).append(name)
    if len(found) > 1:
        each = "; ".join(f"{driver} on {', '.join(names)}" for driver, names in found.items())
        yield f"NVIDIA drivers differ: {each}"


def gpu_notes(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
    report = facts.gpus
    if report.gpus and usable_devices(inventory, host, facts) and not facts.peer_memory:
        yield (
            "nvidia_peermem is not loaded: RDMA reaches the GPUs' memory only with NVIDIA's open "
            "kernel modules; with the others: sudo modprobe nvidia_peermem"
        )
    if not host.gpus:
        if report.gpus:
            yield (
                f"has {describe(report.gpus)}, but the inventory declares none: they will not "
                "be used"
            )
        return
    if report.gpus and report.error:
        yield f"nvidia-smi says: {report.error}"
    if len(report.gpus) > len(host.gpus):
        yield f"has {_count(len(report.gpus))}, but the inventory declares {len(host.gpus)}"
    if any(gpu.persistence is False for gpu in report.gpus):
        yield (
            "persistence mode is off: each program that finds the GPUs idle has to initialize "
            "them again (sudo systemctl enable --now nvidia-persistenced)"
        )
    if strangers := foreign(report):
        yield f"other processes use its GPUs: {describe_processes(strangers)}"
    yield from xid_notes(report)
    yield from _peer_notes(report)
    if any(gpu.unified for gpu in report.gpus):
        yield "its GPU shares the host's memory, which is counted as the GPU's"
    if any(gpu.memory is None for gpu in report.gpus):
        yield "nvidia-smi does not report a GPU's memory, so it was not compared with the inventory"


def _peer_notes(report: GpuReport) -> Iterator[str]:
    """Note what routes traffic between GPUs through the CPU, or makes it hang (NCCL's
    troubleshooting guide, "GPU Direct")."""
    count = len(report.gpus)
    if count < 2:
        return
    if translating := [kind for kind in report.iommu if kind.startswith("DMA")]:
        yield (
            f"the IOMMU translates ({translating[0]}) what its {count} GPUs send each other over "
            "PCIe, which is slow or hangs: boot with iommu=pt; if all-reduces hang before that: "
            'env: {NCCL_P2P_DISABLE: "1"} in the inventory'
        )
    if report.acs_bridges:
        yield (
            f"PCI bridges ({', '.join(report.acs_bridges[:4])}{_more(report.acs_bridges[4:])}) "
            "redirect requests between devices (ACS), so GPUs do not reach each other directly: "
            "disable ACS in the firmware's setup; if all-reduces hang before that: "
            'env: {NCCL_P2P_DISABLE: "1"} in the inventory'
        )


def _more(rest: Sequence[str]) -> str:
    return f" and {len(rest)} more" if rest else ""


def describe(gpus: Sequence[GpuFacts]) -> str:
    """Format `2 x NVIDIA L4 (22.5 GiB), 1 x ...`, in the order in which models first appear."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        memory = f" ({_gib(gpu.memory)})" if gpu.memory is not None else ""
        counts[f"{gpu.model}{memory}"] = counts.get(f"{gpu.model}{memory}", 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _missing(declared: Sequence[Gpu], found: Sequence[GpuFacts]) -> list[Gpu]:
    """Return declared GPUs without a matching GPU; the most specific ones are matched first."""
    free = list(found)
    missing = []
    for wanted in sorted(declared, key=lambda gpu: (gpu.model is None) + (gpu.memory is None)):
        match = next((gpu for gpu in free if _fits(wanted, gpu)), None)
        if match is None:
            missing.append(wanted)
        else:
            free.remove(match)
    return missing


def _fits(declared: Gpu, found: GpuFacts) -> bool:
    """Return whether `found` has the declared model and memory, as far as both are known. `H800`
    matches `NVIDIA H800 PCIe`: every declared word must occur, and no other word may be one of
    TELLING_WORDS."""
    if declared.memory is not None and found.memory is not None:
        off = abs(found.memory - declared.memory)
        if off > declared.memory * MEMORY_TOLERANCE:
            return False
    if declared.model is None:
        return True
    wanted, there = (
        set(re.findall(r"[a-z0-9]+", name.lower())) for name in (declared.model, found.model)
    )
    return wanted <= there and not (there - wanted) & TELLING_WORDS


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}".removesuffix(".0") + " GiB"


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
