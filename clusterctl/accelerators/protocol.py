"""What differs between accelerators, each question with one answer for all who ask it."""

from __future__ import annotations

from typing import Protocol

from clusterctl.accelerators.engine_defaults import EngineDefaults
from clusterctl.facts.model import GpuFacts, HostFacts


class Accelerator(Protocol):
    """One kind of device that models run on. `docs/accelerators.md` goes through it for a new one.

    All answers are the same for the same arguments: hosts are asked elsewhere.
    """

    # Planning: what a model may use, and how vLLM is started on it.

    @property
    def defaults(self) -> EngineDefaults: ...

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        """`count` devices of a host, of which nothing else is in use, as a plan of memory sees
        them."""
