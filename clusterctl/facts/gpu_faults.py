"""Find faults of a host's GPUs, each with its name and fix. Pure.

What the driver reports now takes precedence; Xid errors in the kernel's log cover faults that it
does not report, and older drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import GpuFacts, GpuProcess, GpuReport, Xid
from clusterctl.published import table
from clusterctl.units import GIB

_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+),?\s*(?P<text>.*)"
)
_LOADED = "NVRM: loading"


# By code, from NVIDIA's catalog
_XIDS: Mapping[str, Mapping[str, str]] = table("xids")["xids"]

# NVIDIA's immediate actions that a GPU needs before it is used again; other Xids need none
_RESET = frozenset({"RESET_GPU", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR"})
_REBOOT = frozenset({"RESTART_BM", "RESTART_VM"})
_CHANGED = "XID_154"  # `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`

# Of the others: the GPU keeps working, but it or its memory ages
_NOTED = frozenset({63, 92, 94, 157, 160, 161, 164, 165, 168})


def meaning(xid: Xid) -> str:
    """Return what happened, in NVIDIA's words."""
    return _XIDS[str(xid.code)]["what"] if str(xid.code) in _XIDS else "not in NVIDIA's catalog"


def is_serious(xid: Xid) -> bool:
    """Whether the GPU must be reset, or the host rebooted. For NVLink 5 (144 to 150), the driver
    says whether an error is fatal."""
    action = _XIDS.get(str(xid.code), {}).get("action", "")
    if action == _CHANGED:
        return re.search(r"to 0x0*[1-9a-f]", xid.text) is not None
    return action in _RESET | _REBOOT and " nonfatal " not in f" {xid.text.lower()} "


def parse_xids(lines: Sequence[str]) -> tuple[Xid, ...]:
    """Xid errors since the driver was last loaded, which clears earlier faults."""
    loaded = max((n for n, line in enumerate(lines) if _LOADED in line), default=-1)
    found = (_LINE.search(line) for line in lines[loaded + 1 :])
    return tuple(Xid(int(m["code"]), m["bus"].lower(), m["text"].strip()) for m in found if m)


def same_bus(log: str, smi: str) -> bool:
    """Whether both name one device: the log's `0000:3b:00` is nvidia-smi's `00000000:3B:00.0`. The
    function after the dot is ignored: it is 0 for every GPU."""
    numbers = [
        [int(word, 16) for word in bus.partition(".")[0].split(":") if word] for bus in (log, smi)
    ]
    return numbers[0][-3:] == numbers[1][-3:]


# Bytes. Less than vLLM's own margin (gpu_memory_utilization 0.9 of 12 GiB) does no harm.
FOREIGN_MEMORY = 1 * 2**30

RESET = "end the programs on it, then: sudo nvidia-smi --gpu-reset -i {bus}; or sudo reboot"
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
            f"MIG is on (GPU {split}): a program sees one instance, and tensor parallelism cannot "
            "span instances",
            hint=f"sudo nvidia-smi -i {split} -mig 0",
        )
    yield from _fabric_problems(report)
    if exclusive := [gpu for gpu in report.gpus if gpu.compute_mode in _NOT_SHARED]:
        numbers = ",".join(str(gpu.index) for gpu in exclusive)
        yield RequirementsNotMet(
            f"compute mode of GPU {numbers} is {exclusive[0].compute_mode}: CUDA refuses a rank "
            "while another program, such as a monitor, uses the GPU",
            hint=f"sudo nvidia-smi -i {numbers} -c DEFAULT",
        )
    strangers = foreign(report)
    if sum(process.memory or 0 for process in strangers) >= FOREIGN_MEMORY:
        pids = " ".join(dict.fromkeys(str(process.pid) for process in strangers))
        yield RequirementsNotMet(
            f"other processes use its GPUs: {describe_processes(strangers)}",
            hint=f"end them: kill {pids}; or list only this host's other GPUs in the inventory",
        )


_NOT_SHARED = frozenset({"Exclusive_Process", "Exclusive_Thread", "Prohibited"})

# NVLink 5 (compute capability 10.x) has its switches managed over InfiniBand's kernel interfaces:
# NVIDIA Fabric Manager User Guide, "NVLink Subnet Manager"
_NVLINK_5 = "10."


def _fabric_problems(report: GpuReport) -> Iterator[RequirementsNotMet]:
    """Yield a problem if the fabric of an NVSwitch machine is not up: CUDA fails with error 802."""
    waiting = [gpu for gpu in report.gpus if gpu.fabric_state in ("Not Started", "In Progress")]
    manager = report.fabric_manager
    if manager in (None, "active") and not waiting:
        return
    start = (
        "sudo systemctl enable --now nvidia-fabricmanager (package nvidia-fabricmanager, of the "
        "driver's version)"
    )
    if any(gpu.compute_capability.startswith(_NVLINK_5) for gpu in report.gpus):
        start = (
            "NVLink 5 needs the package nvlsm and the module ib_umad besides nvidia-fabricmanager "
            "of the driver's version: sudo modprobe ib_umad; sudo systemctl restart "
            "nvidia-fabricmanager; journalctl -u nvidia-fabricmanager shows what is missing"
        )
    if manager in (None, "active"):
        manager = f"GPU {waiting[0].index}: {waiting[0].fabric_state}"
    yield RequirementsNotMet(
        f"has NVSwitches, but NVIDIA's fabric manager is not ready ({manager})", hint=start
    )


def serious_xids(report: GpuReport) -> list[Xid]:
    """Return the last serious Xid error of each GPU."""
    return list({xid.bus: xid for xid in report.xids if is_serious(xid)}.values())


def xid_notes(report: GpuReport) -> Iterator[str]:
    """Note Xids after which a GPU keeps working, and those that the driver has dealt with."""
    for xid in dict.fromkeys(report.xids):
        said = f"the GPU at {xid.bus} reported Xid {xid.code}: {meaning(xid)}"
        if xid.code in _NOTED or (not is_serious(xid) and "nonfatal" in xid.text.lower()):
            yield said
        elif is_serious(xid) and (gpu := _gpu_of(xid, report)) and gpu.recovery == NO_RECOVERY:
            yield f"{said}; nvidia-smi now says: GPU recovery action None"


def _gpu_of(xid: Xid, report: GpuReport) -> GpuFacts | None:
    return next((gpu for gpu in report.gpus if same_bus(xid.bus, gpu.pci_bus)), None)


def _xid_errors(report: GpuReport) -> Iterator[RequirementsNotMet]:
    """Yield the last serious Xid error of each GPU whose driver reports no recovery state."""
    for xid in serious_xids(report):
        gpu = _gpu_of(xid, report)
        if gpu and gpu.recovery:
            continue  # the driver's state is more reliable than an old line of the log
        name = _name(gpu) if gpu else f"the GPU at {xid.bus}"
        reboot = _XIDS[str(xid.code)]["action"] in _REBOOT or "Reboot Required" in xid.text
        yield RequirementsNotMet(
            f"{name} reported Xid {xid.code}: {meaning(xid)}",
            hint="sudo reboot" if reboot else RESET.format(bus=xid.bus) + AFTER_HEALING,
            detail=f"Xid {xid.code} ({xid.bus}): {xid.text}",
        )


def _memory_errors(gpu: GpuFacts) -> Iterator[RequirementsNotMet]:
    if gpu.remap_failed:
        yield RequirementsNotMet(
            f"{_name(gpu)} has a bad row of memory and no spare row to replace it",
            hint="have the GPU replaced; until then remove it from the inventory's gpus",
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


def gpus_of_strangers(
    report: GpuReport, *, alone: bool = False
) -> dict[int, tuple[GpuProcess, ...]]:
    """Return, by GPU index, the processes that belong to none of our clusters and hold too much
    memory to ignore. `alone`: only for GPUs that none of our processes uses."""
    found = {}
    ours = {process.gpu for process in report.processes if process.cluster}
    for gpu in report.gpus:
        if alone and gpu.uuid in ours:
            continue
        on_it = tuple(process for process in foreign(report) if process.gpu == gpu.uuid)
        if sum(process.memory or 0 for process in on_it) >= FOREIGN_MEMORY:
            found[gpu.index] = on_it
    return found


def describe_processes(processes: Sequence[GpuProcess]) -> str:
    return ", ".join(
        f"{process.name} (pid {process.pid}, {(process.memory or 0) / GIB:.1f} GiB)"
        for process in processes
    )


def _name(gpu: GpuFacts) -> str:
    return f"GPU {gpu.index} ({gpu.pci_bus})" if gpu.pci_bus else f"GPU {gpu.index}"
