"""GPUs that the inventory promises, against those that are there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.gpus import NOT_FOUND
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.inventory.model import Gpu, Host

MEMORY_TOLERANCE = 0.10
"""Part by which memory may differ from the promise: names are in round numbers, the driver
keeps some. An L4 of "24 GiB" shows 23034 MiB (6 % less), an H200 of "141 GB" 143771 MiB."""

TELLING_WORDS = frozenset({"ti", "super", "laptop", "max", "mobile", "ada", "d"})
"""Words that make another GPU of the same name: an RTX 3090 is no RTX 3090 Ti."""

_GIB = 2**30


def gpu_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    """Nothing for a host that promises no GPU."""
    promised, report = host.gpus, facts.gpus
    if not promised:
        return
    if not report.gpus:
        yield RequirementsNotMet(
            f"promises {_count(len(promised))}, and none can be used: {report.error}",
            host=host.name,
            hint=_driver_hint(facts),
        )
    elif len(report.gpus) < len(promised):
        yield RequirementsNotMet(
            f"promises {_count(len(promised))} and has {len(report.gpus)}: {describe(report.gpus)}",
            host=host.name,
            hint=f"set gpus: {len(report.gpus)} in the inventory; on the host: nvidia-smi -L",
            detail=report.error,
        )
    elif broken := _unfulfilled(promised, report.gpus):
        yield RequirementsNotMet(
            f"promises {', '.join(_promise(gpu) for gpu in broken)} and has "
            f"{describe(report.gpus)}",
            host=host.name,
            hint="correct gpus in the inventory; on the host: nvidia-smi -L",
        )


def gpu_notes(host: Host, facts: HostFacts) -> Iterator[str]:
    report = facts.gpus
    if not host.gpus:
        if report.gpus:
            yield f"has {describe(report.gpus)} and promises none: it will serve nothing"
        return
    if report.gpus and report.error:
        yield f"nvidia-smi says: {report.error}"
    if len(report.gpus) > len(host.gpus):
        yield f"has {_count(len(report.gpus))} and promises {len(host.gpus)}"
    if any(gpu.mig for gpu in report.gpus):
        yield "MIG is on: vLLM sees the instances, and tensor parallelism does not span them"
    if any(gpu.memory is None for gpu in report.gpus):
        yield "nvidia-smi does not say how much memory a GPU has: the promise was not compared"


def describe(gpus: Sequence[GpuFacts]) -> str:
    """`2 x NVIDIA L4 (22.5 GiB), 1 x ...`, in the order in which they first appear."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        memory = f" ({_gib(gpu.memory)})" if gpu.memory is not None else ""
        counts[f"{gpu.model}{memory}"] = counts.get(f"{gpu.model}{memory}", 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _unfulfilled(promised: Sequence[Gpu], found: Sequence[GpuFacts]) -> list[Gpu]:
    """Promises that no GPU keeps, each GPU keeping one; the choosiest promises come first."""
    free = list(found)
    broken = []
    for promise in sorted(promised, key=lambda gpu: (gpu.model is None) + (gpu.memory is None)):
        keeper = next((gpu for gpu in free if _keeps(promise, gpu)), None)
        if keeper is None:
            broken.append(promise)
        else:
            free.remove(keeper)
    return broken


def _keeps(promise: Gpu, found: GpuFacts) -> bool:
    return _is_model(promise.model, found.model) and _has_memory(promise.memory, found.memory)


def _is_model(promise: str | None, found: str) -> bool:
    """`H800` is kept by `NVIDIA H800 PCIe`: all its words are there, and no telling one more."""
    if promise is None:
        return True
    wanted, there = _words(promise), _words(found)
    return wanted <= there and not (there - wanted) & TELLING_WORDS


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _has_memory(promise: int | None, found: int | None) -> bool:
    if promise is None or found is None:
        return True
    return abs(found - promise) <= promise * MEMORY_TOLERANCE


def _promise(gpu: Gpu) -> str:
    name = gpu.model or "a GPU"
    return f"{name} ({_gib(gpu.memory)})" if gpu.memory is not None else name


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f}".removesuffix(".0") + " GiB"


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _driver_hint(facts: HostFacts) -> str:
    error = facts.gpus.error or ""
    if "version mismatch" in error:
        return "the driver was upgraded under the running kernel module: sudo reboot"
    if "does not answer" in error:
        return "a GPU hangs: sudo dmesg | grep -i xid; then sudo reboot"
    if error != NOT_FOUND:
        return "sudo modprobe nvidia; if that fails: sudo dmesg | grep -i nvrm"
    if facts.gpus.pci_devices == 0:
        return "no NVIDIA GPU is on its PCI bus: lspci -d 10de:; set gpus: 0 in the inventory"
    if facts.os.id == "ubuntu":
        return "install the driver: sudo ubuntu-drivers install --gpgpu; sudo reboot"
    if "debian" in (facts.os.id, *facts.os.like):
        return "install the driver: sudo apt-get install nvidia-driver; sudo reboot"
    return "install the NVIDIA driver, then: sudo reboot; nvidia-smi -L"
