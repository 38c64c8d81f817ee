"""What differs between accelerators."""

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
    """What a container requests from the engine to get a host's devices; nothing by default."""

    cdi: tuple[str, ...] = ()  # CDI names, such as `nvidia.com/gpu=all`
    all_gpus: bool = False  # The engine's own flag for all GPUs
    nodes: tuple[str, ...] = ()  # Device nodes, by their paths


class Accelerator(DeviceRequirements, Protocol):
    """A type of device that models run on. `docs/accelerators.md` explains how to add one.

    All methods are pure, except for `gpus_lost`. What hosts must have for it is in
    `DeviceRequirements`.
    """

    # The inventory, and what hosts say.

    @property
    def counted(self) -> bool:
        """Whether hosts report how many devices they have. If so, a host for which the inventory
        promises nothing provides all of them; if not, none, and `init` promises one."""

    @property
    def inventory_note(self) -> str:
        """The comment that `init` writes above the name; empty for the default."""

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
        """The backend of the fabric gate's collectives."""

    # Bootstrap: what hosts need beside the container engine.

    def host_steps(self, packages: Packages, bundles: Sequence[Bundle]) -> tuple[Step, ...]:
        """Return the steps that let the engine give devices to containers, right after it."""

    def image_proof(
        self, spec_for: Callable[[HostView], ContainerSpec], engines: Engines, file: str
    ) -> tuple[Step, ...]:
        """Return the steps that prove that devices work in the image, before a node starts. `file`
        is the inventory, quoted for a command."""

    def gpus_lost(
        self, view: HostView, driver: ContainerDriver, container: Container
    ) -> str | None:
        """Say why the running node container must be recreated, if it has lost the host's
        devices."""

    def purge_steps(self) -> tuple[Step, ...]:
        """Return the steps with which `down --purge` undoes `host_steps`."""

    # Planning: what a model may use, and how vLLM is started on it.

    @property
    def defaults(self) -> EngineDefaults: ...

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        """Return `count` unused devices of a host, for planning memory."""
