"""How hosts are asked for GPUs: the part of the probe that differs between vendors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files as resource_files

from clusterctl.facts.gpu_health import nvidia_report
from clusterctl.facts.gpu_model import GpuReport
from clusterctl.facts.sections import Answer
from clusterctl.facts.system import Files

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
