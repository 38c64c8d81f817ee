"""Probe of a host's GPUs: the part that differs between vendors."""

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
    """Parse all that the probe found out about GPUs; a part that cannot be parsed is noted in
    `answer` and left empty."""
    garbled = GpuReport((), "the output of nvidia-smi cannot be parsed")
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
    """A vendor's part of the probe: its script, and the parser of the output."""

    # Two shell functions, sent before probe.sh, which calls them. `with_gpus COMMAND...` runs the
    # command, and prints sections with the output of the vendor's program, if there is one.
    # `gpu_kernel_log` prints what can be found out without that program.
    script: bytes
    program: str  # Name of the vendor's program, for the error if it hangs
    # Parses the answer's sections, the files and the paths of probe.sh. Raises nothing: parts that
    # cannot be parsed are noted in the answer.
    read: ReadReport


NVIDIA = GpuProbe(
    resource_files("clusterctl.facts").joinpath("probe_gpus.sh").read_bytes(),
    "nvidia-smi",
    nvidia_report,
)
