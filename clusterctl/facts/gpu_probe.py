"""The probe of a host's GPUs, which differs between vendors, and NVIDIA's: what nvidia-smi, the
kernel's log and the PCI bus report."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resource_files

from clusterctl.facts.gpu_faults import parse_xids
from clusterctl.facts.model import GpuFacts, GpuProcess, GpuReport
from clusterctl.facts.sections import TIMED_OUT, Answer, Files, Section, first_line
from clusterctl.facts.system import parse_memory

NOUVEAU = "/sys/module/nouveau"

# In the order of probe_gpus.sh; older drivers print only the first thirteen, nine or five
FIELDS = (
    "index", "uuid", "name", "memory.total", "driver_version",
    "memory.used", "mig.mode.current", "compute_cap", "pci.bus_id",
    "ecc.errors.uncorrected.volatile.total", "persistence_mode", "fabric.state",
    "gpu_recovery_action", "compute_mode",
)  # fmt: skip

NOT_FOUND = "nvidia-smi is not installed"
# GPUs that use the CPU's memory, for which nvidia-smi prints [N/A] (skypilot #10177)
SHARING_MODELS = frozenset({"gb10", "orin", "thor"})

# An index and a UUID, which has no prefix on a Jetson
_GPU_LINE = re.compile(r"\d+, *(?:GPU-|[0-9a-fA-F]{8}-)")
_PROCESS_LINE = re.compile(r"(\w*)\t((?:GPU-|[0-9a-fA-F]{8}-)\S*), (\d+), (.*), ([^,]*)")
_GPU_NODE = re.compile(r"/dev/nvidia\d+")
# Further nodes that CUDA needs; the last two appear when it is first used
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_IS_XID = "NVRM: Xid"
_NVIDIA_VENDOR = "0x10de"
_PASSED = re.compile(r"/sys/bus/pci/drivers/vfio-pci/([0-9a-f:.]+)")
_IOMMU = re.compile(r"/sys/bus/pci/drivers/nvidia/[0-9a-f:.]+/iommu_group/type")
_OF_KERNEL = re.compile(r"/lib/modules/([^/]+)/")


def nvidia_report(answer: Answer, files: Files, paths: Sequence[str]) -> GpuReport:
    """Parse everything that the probe found about GPUs; a part that cannot be parsed is noted in
    `answer` and left empty."""
    garbled = GpuReport((), "the output of nvidia-smi cannot be parsed")
    report = answer.read("GPUs", garbled, _parse_gpus, answer.find("gpus"), files)
    found = report.gpus
    if rows := answer.find("gpu_rows"):
        found = answer.read("rows of GPU memory", found, _with_rows, found, rows)
    if any(gpu.memory is None for gpu in found):
        memory = answer.read("memory", 0, parse_memory, files)
        found = tuple(_with_shared(gpu, memory) for gpu in found)
    nodes = sorted(path for path in paths if _GPU_NODE.fullmatch(path))
    manager = answer.lines("fabric_manager")
    log = answer.lines("kernel_log")
    kernels = (_OF_KERNEL.match(line) for line in answer.lines("nvidia_modules"))
    secure = answer.lines("secure_boot")
    passed = (match[1] for match in map(_PASSED.fullmatch, paths) if match)
    return replace(
        report,
        gpus=found,
        xids=answer.read("the kernel's log", (), parse_xids, log),
        processes=answer.read("GPU processes", (), _parse_processes, answer.lines("gpu_processes")),
        nouveau=NOUVEAU in paths,
        module=first_line(files, "/sys/module/nvidia/version"),
        # A container needs CUDA's control nodes, too, even if they do not exist yet.
        nodes=(*nodes, *CONTROL_NODES) if nodes else (),
        fabric_manager=manager[0].strip() if manager else None,
        log=tuple((line.partition("] ")[2] or line).strip() for line in log if _IS_XID not in line),
        passed_through=tuple(device for device in passed if device in _on_bus(files)),
        module_kernels=tuple(match[1] for match in kernels if match),
        secure_boot=secure[0].strip() == "1" if secure else None,
        iommu=tuple(of[0].strip() for path, of in files.items() if _IOMMU.fullmatch(path) and of),
        acs_bridges=tuple(line.split()[0] for line in answer.lines("acs")),
    )


def _parse_gpus(section: Section | None, files: Files) -> GpuReport:
    """Return the GPUs and nvidia-smi's messages. Raises ValueError or LookupError if a GPU's line
    has too few fields."""
    on_bus = len(_on_bus(files))
    if section is None:
        return GpuReport((), NOT_FOUND, on_bus)
    if section.status == TIMED_OUT:
        return GpuReport((), "nvidia-smi does not answer", on_bus, silent=True)
    gpus = tuple(_gpu(line) for line in section.lines if _GPU_LINE.match(line))
    # A GPU that fell off the bus, or a corrupt infoROM, is reported as text among the GPUs' lines.
    words = " ".join(line.strip() for line in section.lines if not _GPU_LINE.match(line))
    if not gpus and not words:
        words = f"nvidia-smi exited with status {section.status} and printed nothing"
    return GpuReport(gpus, words or None, on_bus)


def _on_bus(files: Files) -> list[str]:
    """Return the PCI addresses of NVIDIA's devices whose class is VGA (0300) or 3D (0302)
    controller."""
    vendors = (
        path for path in files if path.startswith("/sys/bus/pci/") and path.endswith("/vendor")
    )
    return [
        path.split("/")[-2]
        for path in vendors
        if files[path][0].strip() == _NVIDIA_VENDOR and files.get(path.replace("vendor", "class"))
    ]


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
        compute_mode=_known(value.get("compute_mode", "")),
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


def _with_shared(gpu: GpuFacts, memory: int) -> GpuFacts:
    """Add the host's memory to a GPU that uses it, for which nvidia-smi prints none."""
    shares = bool(set(gpu.model.lower().split()) & SHARING_MODELS)
    if gpu.memory is None and memory and shares:
        return replace(gpu, memory=memory, unified=True)
    return gpu


def _with_rows(gpus: Sequence[GpuFacts], section: Section) -> tuple[GpuFacts, ...]:
    """Add the state of bad memory rows from nvidia-smi's `bus, pending, failure` lines."""
    lines = ([word.strip() for word in line.split(",")] for line in section.lines)
    states = {words[0]: words[1:] for words in lines if len(words) == 3}
    found = []
    for gpu in gpus:
        pending, failed = states.get(gpu.pci_bus, ("", ""))
        found.append(replace(gpu, remap_pending=pending == "Yes", remap_failed=failed == "Yes"))
    return tuple(found)


def _parse_processes(lines: Sequence[str]) -> tuple[GpuProcess, ...]:
    """Parse `container TAB uuid, pid, name, MiB` lines; a name may contain commas."""
    matches = (_PROCESS_LINE.fullmatch(line) for line in lines)
    return tuple(
        GpuProcess(match[2], int(match[3]), match[4], _mebibytes(match[5]), match[1])
        for match in matches
        if match
    )


ReadReport = Callable[[Answer, Files, Sequence[str]], GpuReport]


@dataclass(frozen=True)
class GpuProbe:
    """A vendor's part of the probe: its script, and the parser of the output."""

    # Two shell functions, sent before probe.sh, which calls them. `with_gpus COMMAND...` runs the
    # command, and prints sections with the output of the vendor's program, if there is one.
    # `gpu_kernel_log` prints what can be found out without that program.
    script: bytes
    program: str  # Name of the vendor's program, for the error if it hangs
    # Parses the answer's sections, the files and the paths of probe.sh. Raises nothing: parts that
    # cannot be parsed are noted in the answer.
    read: ReadReport
    # Shell lines that print what GPUs do now, for `status --wide`: a line per GPU with its index,
    # the share of time in use in percent, °C, and used and total memory in MiB, by commas. What is
    # no number counts as not known. Last in its script, it may exit.
    load: str = ""


NVIDIA = GpuProbe(
    resource_files("clusterctl.facts").joinpath("probe_gpus.sh").read_bytes(),
    "nvidia-smi",
    nvidia_report,
    """\
PATH=$PATH:/usr/lib/wsl/lib
command -v nvidia-smi >/dev/null || exit 0
exec nvidia-smi --format=csv,noheader,nounits \\
  --query-gpu=index,utilization.gpu,temperature.gpu,memory.used,memory.total
""",
)
