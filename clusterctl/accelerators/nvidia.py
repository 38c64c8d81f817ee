"""NVIDIA's GPUs: CUDA in containers by the vendor's toolkit, NCCL between them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from clusterctl.accelerators.engine_defaults import ON_GPUS
from clusterctl.accelerators.protocol import Accelerator, DeviceAccess
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.node.documents import GpuListing
from clusterctl.node.fabric_documents import GpuBackend


class Nvidia:
    environment: Mapping[str, str] = MappingProxyType(
        {
            # It ends workers when the host's memory is nearly full, which the page cache of a
            # unified-memory GPU host is by design (vllm issue 28328).
            "RAY_memory_monitor_refresh_ms": "0"
        }
    )
    gpu_listing = GpuListing(["nvidia-smi", "-L"], "GPU ")
    gpu_backend = GpuBackend("cuda", "nccl")
    defaults = ON_GPUS

    def unpromised(self, facts: HostFacts | None) -> int | None:
        """Every GPU that the host shows."""
        return len(facts.gpus.gpus) if facts else None

    def access(self, facts: HostFacts) -> DeviceAccess:
        """CDI names, or for `--gpus all` the device nodes that go with it.

        CDI first: the older hook adds devices behind the engine's back, and a `systemctl
        daemon-reload` takes them away from running containers (nvidia-container-toolkit issue
        48). Devices that the engine was asked for by name stay.
        """
        if facts.engine.cdi_spec_dirs and any("nvidia" in path for path in facts.cdi_specs):
            return DeviceAccess(cdi=("nvidia.com/gpu=all",))
        return DeviceAccess(all_gpus=True, nodes=facts.gpus.nodes)

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        return facts.gpus.gpus[:count]


ACCELERATOR: Accelerator = Nvidia()
