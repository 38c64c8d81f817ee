"""Parse the output of nvidia-smi and the files of the PCI bus."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.facts.model import GpuFacts, GpuProcess, GpuReport
from clusterctl.facts.sections import Section
from clusterctl.facts.system import Files

# In the order of probe_gpus.sh; older drivers print only the first nine or five
FIELDS = (
    "index", "uuid", "name", "memory.total", "driver_version",
    "memory.used", "mig.mode.current", "compute_cap", "pci.bus_id",
    "ecc.errors.uncorrected.volatile.total", "persistence_mode", "fabric.state",
    "gpu_recovery_action",
)  # fmt: skip

NOT_FOUND = "nvidia-smi is not installed"
# GPUs that use the CPU's memory, for which nvidia-smi prints [N/A] (skypilot #10177)
SHARING_MODELS = frozenset({"gb10", "orin", "thor"})

_GPU_LINE = re.compile(r"\d+, *GPU-")
_GPU_NODE = re.compile(r"/dev/nvidia\d+")
# Further nodes that CUDA needs; the last two appear when it is first used
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_NVIDIA_VENDOR = "0x10de"
_TIMED_OUT = 124  # Exit status of `timeout` when it had to end its command


def parse_gpus(section: Section | None, files: Files) -> GpuReport:
    """Return the GPUs and nvidia-smi's messages. Raises ValueError or LookupError if a GPU's line
    has too few fields."""
    on_bus = _pci_devices(files)
    if section is None:
        return GpuReport((), NOT_FOUND, on_bus)
    if section.status == _TIMED_OUT:
        return GpuReport((), "nvidia-smi does not answer", on_bus)
    gpus = tuple(_gpu(line) for line in section.lines if _GPU_LINE.match(line))
    # A GPU that fell off the bus, or a corrupt infoROM, is reported as text among the GPUs' lines.
    words = " ".join(line.strip() for line in section.lines if not _GPU_LINE.match(line))
    if not gpus and not words:
        words = f"nvidia-smi ended with {section.status} and said nothing"
    return GpuReport(gpus, words or None, on_bus)


def _gpu(line: str) -> GpuFacts:
    value = dict(zip(FIELDS, (word.strip() for word in line.split(",")), strict=False))
    persistence = _known(value.get("persistence_mode", ""))
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
        uncorrected_ecc=_count(value.get("ecc.errors.uncorrected.volatile.total", "")),
        persistence=persistence == "Enabled" if persistence else None,
        fabric_state=_known(value.get("fabric.state", "")),
        recovery=_known(value.get("gpu_recovery_action", "")),
    )


def _mebibytes(word: str) -> int | None:
    """Bytes, from a number in MiB; None for [N/A] and [Not Supported]."""
    number = _count(word)
    return number * 2**20 if number is not None else None


def _count(word: str) -> int | None:
    digits = re.match(r"\d+", word)
    return int(digits[0]) if digits else None


def _known(word: str) -> str:
    return "" if word.startswith("[") or word == "N/A" else word


def _pci_devices(files: Files) -> int:
    """Count NVIDIA's devices whose class is VGA (0300) or 3D (0302) controller."""
    return sum(
        lines[0].strip() == _NVIDIA_VENDOR and bool(files.get(path.replace("vendor", "class")))
        for path, lines in files.items()
        if path.startswith("/sys/bus/pci/") and path.endswith("/vendor")
    )


def with_rows(gpus: Sequence[GpuFacts], section: Section) -> tuple[GpuFacts, ...]:
    """Add the state of bad memory rows from nvidia-smi's `bus, pending, failure` lines."""
    told = {}
    for line in section.lines:
        words = [word.strip() for word in line.split(",")]
        if len(words) == 3:
            told[words[0]] = (words[1] == "Yes", words[2] == "Yes")
    return tuple(
        replace(gpu, remap_pending=told[gpu.pci_bus][0], remap_failed=told[gpu.pci_bus][1])
        if gpu.pci_bus in told
        else gpu
        for gpu in gpus
    )


def with_shared_memory(gpus: Sequence[GpuFacts], memory: int) -> tuple[GpuFacts, ...]:
    """Set the memory of GPUs that share the host's to `memory`, in bytes."""
    return tuple(
        replace(gpu, memory=memory, unified=True)
        if gpu.memory is None and memory and set(gpu.model.lower().split()) & SHARING_MODELS
        else gpu
        for gpu in gpus
    )


def parse_processes(section: Section) -> tuple[GpuProcess, ...]:
    """Parse `container TAB uuid, pid, name, MiB` lines; a name may contain commas."""
    rows = (line.partition("\t") for line in section.lines if "\tGPU-" in line)
    return tuple(_process(container, line.split(", ")) for container, _, line in rows)


def _process(container: str, words: Sequence[str]) -> GpuProcess:
    name = ", ".join(words[2:-1])
    return GpuProcess(words[0], int(words[1]), name, _mebibytes(words[-1]), container.strip())


def with_clusters(report: GpuReport, clusters: Mapping[str, str]) -> GpuReport:
    """Add each process's cluster. `clusters`: IDs of our containers to names of clusters."""
    owned = (replace(p, cluster=clusters.get(p.container, "")) for p in report.processes)
    return replace(report, processes=tuple(owned))


def device_nodes(paths: Sequence[str]) -> tuple[str, ...]:
    """Nodes that a container needs, if `paths` has nodes of GPUs: those, and CUDA's control nodes,
    even if they do not exist yet. Empty for a host without GPUs."""
    gpus = sorted(path for path in paths if _GPU_NODE.fullmatch(path))
    return (*gpus, *CONTROL_NODES) if gpus else ()
