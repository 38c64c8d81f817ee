"""No accelerator: each device that the inventory declares is a rank on the host's CPUs.

For the lab, and for experiments without GPUs.
"""

# ruff: noqa: ARG002 - the Protocol has the arguments, and a CPU needs none of them

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from clusterctl.accelerators.engine_defaults import EngineDefaults
from clusterctl.accelerators.names import LAB_DEVICE, LAB_SPECIFICATION
from clusterctl.accelerators.protocol import Accelerator, DeviceAccess
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.gpu_probe import NVIDIA
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import GpuListing
from clusterctl.node.fabric_documents import GpuBackend
from clusterctl.node.prestart import RANK_VARIABLES

# Planning recognises CPUs by the model name CPU.
DEVICE = GpuFacts(index=0, uuid="", model="CPU", memory=0, driver="")


class Cpu(Accelerator):
    counted = False
    device = "CPU device"
    gpu_probe = NVIDIA  # GPUs on a host are shown, but not used
    inventory_note = "One CPU stands for one device, for experiments."
    usual_image = 6 * 2**30  # The lab's takes 2.6 GB unpacked, plus its base image
    environment: Mapping[str, str] = MappingProxyType({RANK_VARIABLES: ""})
    gpu_listing = GpuListing()
    gpu_backend = GpuBackend()
    defaults = EngineDefaults(
        # On a CPU, every additional sequence slows down the others.
        sequences=32,
        tokens=2048,  # vLLM's own default for one rank
        # Compiling takes minutes on a CPU and needs g++, which the image may lack.
        eager=True,
        sleeps=False,
        cache_variable="VLLM_CPU_KVCACHE_SPACE",
    )

    def problems(
        self,
        inventory: Inventory,
        host: Host,
        facts: HostFacts,
        image_env: Mapping[str, str] | None,
    ) -> Iterator[RequirementsNotMet]:
        return iter(())

    def notes(self, inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
        return iter(())

    def notes_between(self, facts: Mapping[str, HostFacts]) -> Iterator[str]:
        return iter(())

    def access(self, facts: HostFacts) -> DeviceAccess:
        given = facts.engine.cdi_spec_dirs and LAB_SPECIFICATION in facts.cdi_specs
        return DeviceAccess(cdi=(LAB_DEVICE,) if given else ())

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        return (DEVICE,) * count


ACCELERATOR: Accelerator = Cpu()
