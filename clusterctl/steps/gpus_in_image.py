"""Check that CUDA works with the node's GPUs in the image that will serve.

The driver's version and the image's labels only predict that; a container that initializes CUDA
proves it. The step changes nothing: check returns None, or raises with what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.containers.diff import Keep, compare
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.containers.failures import engine_error
from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import MALFORMED, ClusterctlError, RequirementsNotMet
from clusterctl.steps.engines import Engines
from clusterctl.steps.gpu_access import lists_other_gpus

PROBE = """\
import json
report = {}
try:
    import torch
    report["cuda"] = torch.version.cuda or ""
    torch.cuda.init()
    report["gpus"] = torch.cuda.device_count()
except Exception as error:
    report["error"] = str(error).strip().splitlines()[0][:300]
print(json.dumps(report))
"""

_NEWER_DRIVER = "a newer driver: clusterctl bootstrap {file} --install-driver FILE.run"

# Part of CUDA's message, in lower case, and the fix; {file}: path of the inventory
_FIXES = (
    ("driver on your system is too old", _NEWER_DRIVER),
    (
        "error 803",
        "the image's own CUDA libraries do not work with this driver (vllm #33447): use an image "
        "for an older CUDA, or " + _NEWER_DRIVER,
    ),
    (
        "error 804",
        "these GPUs cannot run a newer CUDA than their driver's: use an image for an older CUDA, "
        "or  " + _NEWER_DRIVER,
    ),
    ("error 802", "sudo systemctl enable --now nvidia-fabricmanager"),
    ("no cuda gpus", "nvidia-smi on the host; clusterctl bootstrap writes the CDI specification"),
    (
        "unknown error",
        "sudo nvidia-modprobe -u -c 0; if the number of nvidia-uvm in /proc/devices differs from "
        "its major in /etc/cdi/nvidia.yaml: clusterctl bootstrap {file} rewrites that; else: "
        "sudo reboot",
    ),
)


@dataclass(frozen=True)
class CudaReport:
    """The parsed output of `PROBE`."""

    cuda: str = ""
    gpus: int = 0
    error: str = ""


class GpusInImage:
    title = "GPUs in the image"

    def __init__(
        self, spec_for: Callable[[HostView], ContainerSpec], engines: Engines, file: str
    ) -> None:
        """`file`: path of the inventory, for commands in hints."""
        self._spec_for = spec_for
        self._engines = engines
        self._file = file

    def check(self, view: HostView) -> Unknown | None:
        """Raise RequirementsNotMet if CUDA does not work in the image, StepFailed if the engine
        gives it no GPUs; Unknown before GpuAccess has listed the host's GPUs. Skips hosts without
        GPUs, and nodes that are already running."""
        spec = self._spec_for(view)
        if not (spec.cdi_devices or spec.all_gpus):
            return None
        driver = self._engines(view)
        ours = driver.find(spec.name)
        if ours and ours.running and compare(spec, ours) == Keep():
            return None
        view.say("setting CUDA up in the image")
        argv = ["python3", "-c", PROBE]
        result = driver.run_once(spec.image, argv, timeout=deadlines.GPUS_IN_IMAGE, devices_of=spec)
        if not result.ok:
            raise engine_error(result.last_lines() or f"status {result.status}", view.host.name)
        try:
            _require(view, parse(result.stdout), self._file)
        except RequirementsNotMet:
            if not lists_other_gpus(view):
                raise
            return Unknown("the CDI specification must list the host's GPUs first")
        return None

    def apply(self, view: HostView, change: Change) -> None:
        """Do nothing: `check` never returns a change."""


def parse(text: str) -> CudaReport:
    """Parse the last line of the output; libraries may print lines before it."""
    try:
        return CudaReport(**json.loads(text.strip().splitlines()[-1]))
    except MALFORMED:
        return CudaReport(error="the output of PyTorch cannot be parsed")


def _require(view: HostView, answer: CudaReport, file: str) -> None:
    if answer.error:
        said = answer.error.lower()
        fix = next((fix for words, fix in _FIXES if words in said), "nvidia-smi on the host")
        driver = next((gpu.driver for gpu in view.facts.gpus.gpus), "unknown")
        raise RequirementsNotMet(
            f"CUDA {answer.cuda or '?'} of the image does not work with driver {driver}: "
            f"{answer.error}",
            host=view.host.name,
            hint=fix.format(file=file),
        )
    if answer.gpus < len(view.host.gpus):
        raise RequirementsNotMet(
            f"the inventory declares {len(view.host.gpus)} GPUs, but a container of the image sees "
            f"{answer.gpus}",
            host=view.host.name,
            hint="nvidia-smi -L on the host; nvidia-ctk cdi list",
        )


def without_gpus(view: HostView, driver: ContainerDriver, container: Container) -> str | None:
    """Return why `container` must be replaced, if it sees none of the host's GPUs, else None.

    With the toolkit's classic mode, `systemctl daemon-reload` on the host takes them away
    (nvidia-docker issue 1730), and only a new container gets them back.
    """
    asks = container.all_gpus or any("nvidia" in name for name in container.cdi_devices)
    if not (asks and view.host.gpus and view.facts.gpus.gpus):
        return None
    try:
        listed = driver.exec(container.id, ["nvidia-smi", "-L"], timeout=deadlines.GPUS_LISTED)
    except ClusterctlError:
        return None  # no answer does not mean that the GPUs are gone
    if "GPU 0" in listed.stdout or "NVML" not in listed.stdout + listed.stderr:
        return None
    return f"its GPUs are gone: {listed.stdout.strip() or listed.last_lines(1)}"
