"""No accelerator: each device that the inventory promises is a rank on the host's CPUs. For the
lab, and for trying things out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from clusterctl.accelerators.engine_defaults import EngineDefaults
from clusterctl.accelerators.protocol import Accelerator, DeviceAccess
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.node.documents import GpuListing
from clusterctl.node.fabric_documents import GpuBackend

DEVICE = GpuFacts(index=0, uuid="", model="CPU", memory=0, driver="")
"""What a plan knows by the name CPU."""


class Cpu:
    environment: Mapping[str, str] = MappingProxyType({})
    gpu_listing = GpuListing()
    gpu_backend = GpuBackend()
    defaults = EngineDefaults(
        # Every sequence costs the others' speed.
        sequences=32,
        tokens_on_large=2048,
        # Compiling takes minutes on a CPU and needs g++, which the image may lack.
        eager=True,
        cache_variable="VLLM_CPU_KVCACHE_SPACE",
    )

    def unpromised(self, facts: HostFacts | None) -> int:
        del facts
        return 0

    def access(self, facts: HostFacts) -> DeviceAccess:
        del facts
        return DeviceAccess()

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        del facts
        return (DEVICE,) * count


ACCELERATOR: Accelerator = Cpu()
