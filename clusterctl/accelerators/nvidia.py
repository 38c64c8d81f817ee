"""NVIDIA GPUs: CUDA in containers through NVIDIA's toolkit, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from clusterctl.accelerators.engine_defaults import ON_GPUS
from clusterctl.accelerators.protocol import Accelerator, DeviceAccess
from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.step import HostView, Step
from clusterctl.facts.gpu_probe import NVIDIA
from clusterctl.facts.gpu_requirements import driver_notes, gpu_notes, gpu_problems
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.inventory.model import Packages
from clusterctl.node.documents import GpuListing
from clusterctl.node.fabric_documents import GpuBackend
from clusterctl.node.import_ahead import IMPORT_AHEAD, ON
from clusterctl.node.prestart import RANK_VARIABLES
from clusterctl.packages.bundle import Bundle
from clusterctl.packages.repository import NVIDIA_URL
from clusterctl.steps.engines import Engines
from clusterctl.steps.gpu_access import GpuAccess
from clusterctl.steps.gpus_in_image import GpusInImage, without_gpus
from clusterctl.steps.nvidia_toolkit import NvidiaToolkit, ToolkitAbsent

# Columns of nvidia-smi that the recorder reads, and its names for them. Drivers since 535 call
# throttle reasons event reasons, and know the older names, too.
_READINGS = {
    "index": "index",
    "temperature.gpu": "temperature",
    "ecc.errors.uncorrected.volatile.total": "uncorrected",
    "clocks_throttle_reasons.hw_thermal_slowdown": "slowed by heat",
    "clocks_throttle_reasons.sw_thermal_slowdown": "slowed by heat, by the driver",
    "clocks_throttle_reasons.hw_power_brake_slowdown": "slowed by the power supply",
}


class Nvidia:
    counted = True
    device = "GPU"
    gpu_probe = NVIDIA
    inventory_note = ""
    usual_image = 28 * 2**30  # vLLM's own takes 28.6 GB unpacked (vllm #22377), 26.6 GiB
    environment: Mapping[str, str] = MappingProxyType(
        {
            # The monitor kills workers when the host's memory is nearly full, which is normal for
            # the page cache of a unified-memory GPU host (vllm issue 28328).
            "RAY_memory_monitor_refresh_ms": "0",
            # As nvidia-smi numbers GPUs, and so plans do. CUDA's own order begins with the fastest.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            RANK_VARIABLES: "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
            IMPORT_AHEAD: ON,
        }
    )
    gpu_listing = GpuListing(
        ["nvidia-smi", "-L"],
        "GPU ",
        [
            "nvidia-smi",
            f"--query-gpu={','.join(_READINGS)}",
            "--format=csv,noheader,nounits",
        ],
        list(_READINGS.values()),
    )
    gpu_backend = GpuBackend("cuda", "nccl")
    defaults = ON_GPUS
    problems = staticmethod(gpu_problems)
    notes = staticmethod(gpu_notes)
    notes_between = staticmethod(driver_notes)
    gpus_lost = staticmethod(without_gpus)

    def access(self, facts: HostFacts) -> DeviceAccess:
        """Return CDI names, or `--gpus all` with its device nodes.

        CDI is preferred: the older hook adds devices without the engine's knowledge, so a
        `systemctl daemon-reload` removes them from running containers (nvidia-container-toolkit
        issue 48). Devices requested from the engine by name remain.
        """
        if facts.engine.cdi_spec_dirs and any("nvidia" in path for path in facts.cdi_specs):
            return DeviceAccess(cdi=("nvidia.com/gpu=all",))
        return DeviceAccess(all_gpus=True, nodes=facts.gpus.nodes)

    def host_steps(self, packages: Packages, bundles: Sequence[Bundle]) -> tuple[Step, ...]:
        return (NvidiaToolkit(packages, bundles), GpuAccess())

    def fetched(self, packages: Packages) -> str:
        return f"NVIDIA's container toolkit from {packages.nvidia.url or NVIDIA_URL}"

    def image_proof(
        self, spec_for: Callable[[HostView], ContainerSpec], engines: Engines, file: str
    ) -> tuple[Step, ...]:
        return (GpusInImage(spec_for, engines, file),)

    def purge_steps(self, own: str) -> tuple[Step, ...]:
        return (ToolkitAbsent(own),)

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        return facts.gpus.gpus[:count]


ACCELERATOR: Accelerator = Nvidia()
