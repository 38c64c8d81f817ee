"""GPUs, out of what nvidia-smi and the PCI bus said."""

from __future__ import annotations

import re

from clusterctl.facts.model import GpuFacts, GpuReport
from clusterctl.facts.sections import Section
from clusterctl.facts.system import Files

FIELDS = (
    "index", "uuid", "name", "memory.total", "driver_version",
    "memory.used", "mig.mode.current", "compute_cap", "pci.bus_id",
)  # fmt: skip
"""In the order of probe.sh; a driver that does not know the later ones gives the first five."""

NOT_FOUND = "nvidia-smi is not installed"
_GPU_LINE = re.compile(r"\d+, *GPU-")
_NVIDIA_VENDOR = "0x10de"
_TIMED_OUT = 124
"""Exit status of `timeout` when it had to end its command."""


def parse_gpus(section: Section | None, files: Files) -> GpuReport:
    """The GPUs, and nvidia-smi's complaints. Raises ValueError or LookupError when a GPU's line
    has too few fields."""
    on_bus = _pci_devices(files)
    if section is None:
        return GpuReport((), NOT_FOUND, on_bus)
    if section.status == _TIMED_OUT:
        return GpuReport((), "nvidia-smi does not answer", on_bus)
    gpus = tuple(_gpu(line) for line in section.lines if _GPU_LINE.match(line))
    # A GPU that fell off the bus, or a corrupt infoROM, is a sentence among the lines of GPUs.
    words = " ".join(line.strip() for line in section.lines if not _GPU_LINE.match(line))
    if not gpus and not words:
        words = f"nvidia-smi ended with {section.status} and said nothing"
    return GpuReport(gpus, words or None, on_bus)


def _gpu(line: str) -> GpuFacts:
    value = dict(zip(FIELDS, (word.strip() for word in line.split(",")), strict=False))
    return GpuFacts(
        index=int(value["index"]),
        uuid=value["uuid"],
        model=value["name"],
        memory=_mebibytes(value["memory.total"]),
        driver=value["driver_version"],
        memory_used=_mebibytes(value.get("memory.used", "")),
        mig=value.get("mig.mode.current", "") == "Enabled",
        compute_capability=_known(value.get("compute_cap", "")),
        pci_bus=_known(value.get("pci.bus_id", "")),
    )


def _mebibytes(word: str) -> int | None:
    """[N/A] and [Not Supported] are None: a GB10 shares its memory with the CPU and has no
    figure of its own (skypilot #10177)."""
    digits = re.match(r"\d+", word)
    return int(digits[0]) * 2**20 if digits else None


def _known(word: str) -> str:
    return "" if word.startswith("[") else word


def _pci_devices(files: Files) -> int:
    """Devices of NVIDIA whose class is VGA (0300) or 3D (0302) controller."""
    return sum(
        lines[0].strip() == _NVIDIA_VENDOR and bool(files.get(path.replace("vendor", "class")))
        for path, lines in files.items()
        if path.startswith("/sys/bus/pci/") and path.endswith("/vendor")
    )
