"""All that is known of a host's GPUs: their list, bad memory, Xid errors, who computes on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterctl.facts import gpus, system, xid
from clusterctl.facts.gpu_model import GpuReport
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
        xids=answer.read("the kernel's log", (), xid.parse_xids, answer.lines("kernel_log")),
        processes=answer.read("GPU processes", (), gpus.parse_processes, section)
        if section
        else (),
        nouveau=NOUVEAU in paths,
        module=system.first_line(files, "/sys/module/nvidia/version"),
        nodes=gpus.device_nodes(paths),
        fabric_manager=manager[0].strip() if manager else None,
    )
