"""What differs between accelerators, each question with one answer for all who ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from clusterctl.accelerators.engine_defaults import EngineDefaults
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.step import HostView, Step
from clusterctl.facts.gpu_probe import GpuProbe
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.facts.requirements import DeviceRequirements
from clusterctl.inventory.packages import Packages
from clusterctl.node.documents import GpuListing
from clusterctl.node.fabric_documents import GpuBackend
from clusterctl.packages.bundle import Bundle
from clusterctl.steps.engines import Engines


@dataclass(frozen=True)
class DeviceAccess:
    """What a container asks the engine for, to have a host's devices; nothing by default."""

    cdi: tuple[str, ...] = ()  # CDI names, such as `nvidia.com/gpu=all`
    all_gpus: bool = False  # The engine's own flag for all GPUs
    nodes: tuple[str, ...] = ()  # Device nodes, by their paths


class Accelerator(DeviceRequirements, Protocol):
    """One kind of device that models run on. `docs/accelerators.md` goes through it for a new one.

    All answers are the same for the same arguments: hosts are asked elsewhere. What hosts must
    have for it is in `DeviceRequirements`.
    """

    # The inventory, and what hosts say.

    @property
    def counted(self) -> bool:
        """Hosts tell how many devices they have: one for which the inventory promises nothing gives
        all of them. Where they cannot be counted it gives none, and `init` promises one."""

    @property
    def inventory_note(self) -> str:
        """What `init` writes above the name; empty for the default, which goes without saying."""

    @property
    def gpu_probe(self) -> GpuProbe: ...

    # The container of a node with devices, and what is asked in it.

    def access(self, facts: HostFacts) -> DeviceAccess: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of every node container."""

    @property
    def gpu_listing(self) -> GpuListing: ...

    @property
    def gpu_backend(self) -> GpuBackend:
        """What the fabric gate does collectives with."""

    # Bootstrap: what hosts need beside the container engine.

    def host_steps(self, packages: Packages, bundles: Sequence[Bundle]) -> tuple[Step, ...]:
        """Right after the engine: what lets it give containers the devices."""

    def image_proof(
        self, spec_for: Callable[[HostView], ContainerSpec], engines: Engines, file: str
    ) -> tuple[Step, ...]:
        """Before a node starts: that the devices work in the image. `file`: the inventory's, as a
        command takes it."""

    def gpus_lost(
        self, view: HostView, driver: ContainerDriver, container: Container
    ) -> str | None:
        """Why the running node container must be made anew, in words: it sees none of the host's
        devices any more."""

    def purge_steps(self) -> tuple[Step, ...]:
        """What `down --purge` takes back of `host_steps`."""

    # Planning: what a model may use, and how vLLM is started on it.

    @property
    def defaults(self) -> EngineDefaults: ...

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        """`count` devices of a host, of which nothing else is in use, as a plan of memory sees
        them."""
