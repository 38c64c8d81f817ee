"""NVIDIA's GPUs: CUDA in containers by the vendor's toolkit, NCCL between them."""

from __future__ import annotations

from clusterctl.accelerators.engine_defaults import ON_GPUS
from clusterctl.accelerators.protocol import Accelerator
from clusterctl.facts.model import GpuFacts, HostFacts


class Nvidia:
    defaults = ON_GPUS

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        return facts.gpus.gpus[:count]


ACCELERATOR: Accelerator = Nvidia()
