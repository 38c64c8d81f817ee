"""How hosts are asked for GPUs: the part of the probe that differs between vendors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resource_files

from clusterctl.facts import gpus, system
from clusterctl.facts.gpu_faults import parse_xids
from clusterctl.facts.model import GpuReport
from clusterctl.facts.sections import Answer
from clusterctl.facts.system import Files

NOUVEAU = "/sys/module/nouveau"


def nvidia_report(answer: Answer, files: Files, paths: Sequence[str]) -> GpuReport:
    """All that the probe says of GPUs; a part that cannot be read is noted in `answer` and left
    out."""
    garbled = GpuReport((), "what nvidia-smi said could not be read")
    report = answer.read("GPUs", garbled, gpus.parse_gpus, answer.find("gpus"), files)
    found = report.gpus
    if rows := answer.find("gpu_rows"):
        found = answer.read("rows of GPU memory", found, gpus.with_rows, found, rows)
    if any(gpu.memory is None for gpu in found):
        memory = answer.read("memory", 0, system.parse_memory, files, "MemTotal")
        found = gpus.with_shared_memory(found, memory)
    section, manager = answer.find("gpu_processes"), answer.lines("fabric_manager")
    return replace(
        report,
        gpus=found,
        xids=answer.read("the kernel's log", (), parse_xids, answer.lines("kernel_log")),
        processes=answer.read("GPU processes", (), gpus.parse_processes, section)
        if section
        else (),
        nouveau=NOUVEAU in paths,
        module=system.first_line(files, "/sys/module/nvidia/version"),
        nodes=gpus.device_nodes(paths),
        fabric_manager=manager[0].strip() if manager else None,
    )


ReadReport = Callable[[Answer, Files, Sequence[str]], GpuReport]


@dataclass(frozen=True)
class GpuProbe:
    """What a host runs, and what its words mean."""

    # Two functions in the words of probe.sh, before which it is sent. `with_gpus COMMAND...` runs
    # the command, and prints sections of what the vendor's program says, where there is one.
    # `gpu_kernel_log` prints what can be told without that program.
    script: bytes
    program: str  # The vendor's, by its name: it may hang, and is then said not to answer
    # The answer's sections, the files and the paths of probe.sh, as a report. What cannot be read
    # is noted in the answer, and nothing is raised.
    read: ReadReport


NVIDIA = GpuProbe(
    resource_files("clusterctl.facts").joinpath("probe_gpus.sh").read_bytes(),
    "nvidia-smi",
    nvidia_report,
)
