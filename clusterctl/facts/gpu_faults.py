"""Find faults of a host's GPUs, each with its name and fix. Pure.

What the driver reports now takes precedence; Xid errors in the kernel's log cover faults that it
does not report, and older drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import GpuFacts, GpuProcess, GpuReport, Xid
from clusterctl.units import GIB

_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+),?\s*(?P<text>.*)"
)
_LOADED = "NVRM: loading"


@dataclass(frozen=True)
class Meaning:
    what: str
    reboot: bool = False  # Only a reboot helps, not a reset of the GPU
    waits: bool = False  # The GPU keeps working; a reset can wait until it is idle


CATALOG = {
    48: Meaning("memory error that ECC could not correct"),
    62: Meaning("its internal microcontroller halted"),
    63: Meaning("a bad row of its memory is to be replaced", waits=True),
    64: Meaning("a bad row of its memory could not be replaced"),
    74: Meaning("NVLink error"),
    79: Meaning("it fell off the PCI bus", reboot=True),
    92: Meaning("many memory errors that ECC corrected", waits=True),
    94: Meaning("memory error that ended one program only", waits=True),
    95: Meaning("memory error that may have touched every program"),
    109: Meaning("it did not switch between programs in time"),
    110: Meaning("security fault"),
    119: Meaning("its firmware (GSP) did not answer in time"),
    120: Meaning("its firmware (GSP) failed"),
    140: Meaning("memory error that was not recovered from"),
    143: Meaning("it could not be initialized"),
}


def parse_xids(lines: Sequence[str]) -> tuple[Xid, ...]:
    """Xid errors since the driver was last loaded, which clears earlier faults."""
    loaded = max((n for n, line in enumerate(lines) if _LOADED in line), default=-1)
    found = (_LINE.search(line) for line in lines[loaded + 1 :])
    return tuple(Xid(int(m["code"]), m["bus"].lower(), m["text"].strip()) for m in found if m)


def same_bus(log: str, smi: str) -> bool:
    """Whether both name one device: the log's `0000:3b:00` is nvidia-smi's `00000000:3B:00.0`. The
    function after the dot is ignored, as it is 0 for every GPU."""
    numbers = [
        [int(word, 16) for word in bus.partition(".")[0].split(":") if word] for bus in (log, smi)
    ]
    return numbers[0][-3:] == numbers[1][-3:]


# Bytes. Less than vLLM's own margin (gpu_memory_utilization 0.9 of 12 GiB) does no harm.
FOREIGN_MEMORY = 1 * 2**30

RESET = "end what runs on it, then: sudo nvidia-smi --gpu-reset -i {bus}; or sudo reboot"
AFTER_HEALING = "; once it works again: sudo dmesg --clear"
NO_RECOVERY = "None"


def gpu_faults(report: GpuReport) -> Iterator[RequirementsNotMet]:
    """Yield a problem for each fault of the GPUs that nvidia-smi lists."""
    for gpu in report.gpus:
        if gpu.recovery not in ("", NO_RECOVERY):  # reported since driver 565
            yield RequirementsNotMet(
                f"{_name(gpu)} needs recovery: the driver says {gpu.recovery}",
                hint="sudo reboot" if gpu.recovery == "Reboot" else RESET.format(bus=gpu.pci_bus),
            )
    yield from _xid_errors(report)
    for gpu in report.gpus:
        yield from _memory_errors(gpu)
    if split := ",".join(str(gpu.index) for gpu in report.gpus if gpu.mig):
        yield RequirementsNotMet(
            f"MIG is on (GPU {split}): a program sees one instance, and tensor parallelism "
            "does not span instances",
            hint=f"sudo nvidia-smi -i {split} -mig 0",
        )
    # Without the fabric manager of an NVSwitch machine CUDA fails with error 802.
    waiting = [g for g in report.gpus if g.fabric_state in ("Not Started", "In Progress")]
    if report.fabric_manager not in (None, "active") or waiting:
        if report.fabric_manager not in (None, "active"):
            state = report.fabric_manager
        else:
            state = f"GPU {waiting[0].index}: {waiting[0].fabric_state}"
        yield RequirementsNotMet(
            f"has NVSwitches, and NVIDIA's fabric manager is not ready ({state})",
            hint="sudo systemctl enable --now nvidia-fabricmanager (package "
            "nvidia-fabricmanager, of the driver's version)",
        )
    strangers = foreign(report)
    if sum(process.memory or 0 for process in strangers) >= FOREIGN_MEMORY:
        pids = " ".join(dict.fromkeys(str(process.pid) for process in strangers))
        yield RequirementsNotMet(
            f"other processes use its GPUs: {describe_processes(strangers)}",
            hint=f"end them: kill {pids}; or list only this host's other GPUs in the inventory",
        )


def _xid_errors(report: GpuReport) -> Iterator[RequirementsNotMet]:
    """Yield the last serious Xid error of each GPU that has no recovery state of the driver."""
    serious = (xid for xid in report.xids if xid.code in CATALOG and not CATALOG[xid.code].waits)
    for bus, xid in {xid.bus: xid for xid in serious}.items():
        gpu = next((gpu for gpu in report.gpus if same_bus(bus, gpu.pci_bus)), None)
        if gpu and gpu.recovery:
            continue  # the driver's state is more reliable than an old line of the log
        meaning = CATALOG[xid.code]
        name = _name(gpu) if gpu else f"the GPU at {bus}"
        yield RequirementsNotMet(
            f"{name} reported Xid {xid.code}: {meaning.what}",
            hint="sudo reboot" if meaning.reboot else RESET.format(bus=bus) + AFTER_HEALING,
            detail=f"Xid {xid.code} ({bus}): {xid.text}",
        )


def _memory_errors(gpu: GpuFacts) -> Iterator[RequirementsNotMet]:
    if gpu.remap_failed:
        yield RequirementsNotMet(
            f"{_name(gpu)} has a bad row of memory and no spare one for it",
            hint="have the GPU replaced; until then take it out of the inventory's gpus",
        )
    elif gpu.remap_pending:
        yield RequirementsNotMet(
            f"{_name(gpu)} has a bad row of memory, which is replaced at the next reset",
            hint=RESET.format(bus=gpu.pci_bus),
        )
    elif gpu.uncorrected_ecc:
        yield RequirementsNotMet(
            f"{_name(gpu)} had {gpu.uncorrected_ecc} uncorrectable memory errors (ECC) since its "
            "last reset",
            hint=RESET.format(bus=gpu.pci_bus),
        )


def foreign(report: GpuReport) -> tuple[GpuProcess, ...]:
    """Processes that belong to none of our clusters."""
    return tuple(process for process in report.processes if not process.cluster)


def describe_processes(processes: Sequence[GpuProcess]) -> str:
    return ", ".join(
        f"{process.name} (pid {process.pid}, {(process.memory or 0) / GIB:.1f} GiB)"
        for process in processes
    )


def _name(gpu: GpuFacts) -> str:
    return f"GPU {gpu.index} ({gpu.pci_bus})" if gpu.pci_bus else f"GPU {gpu.index}"
