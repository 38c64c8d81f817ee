"""The interface of an accelerator: everything that differs between types of device."""

# ruff: noqa: ARG002 - devices that need nothing need no arguments either

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
from clusterctl.inventory.model import Packages
from clusterctl.node.documents import GpuListing
from clusterctl.node.fabric_documents import GpuBackend
from clusterctl.packages.bundle import Bundle
from clusterctl.steps.engines import Engines


@dataclass(frozen=True)
class DeviceAccess:
    """A container's request to the engine for a host's devices; empty by default."""

    cdi: tuple[str, ...] = ()  # CDI names, such as `nvidia.com/gpu=all`
    all_gpus: bool = False  # Request all GPUs with the engine's own flag
    nodes: tuple[str, ...] = ()  # Device nodes, by their paths


class Accelerator(DeviceRequirements, Protocol):
    """A type of device that models run on. `docs/accelerators.md` explains how to add one.

    All methods are pure, except for `gpus_lost`. Requirements for hosts are in
    `DeviceRequirements`. Methods with a body are for devices that need nothing there.
    """

    # Inventory and facts of hosts.

    @property
    def counted(self) -> bool:
        """Whether hosts report their number of devices. If so, a host without declared devices
        provides all of them; if not, it provides none, and `init` declares one."""

    @property
    def device(self) -> str:
        """The noun for one device in counts, such as `2 GPUs`."""

    @property
    def inventory_note(self) -> str:
        """The comment that `init` writes above the name; empty for the default."""

    @property
    def gpu_probe(self) -> GpuProbe: ...

    # The node container, and commands run in it.

    def access(self, facts: HostFacts) -> DeviceAccess: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of every node container."""

    @property
    def gpu_listing(self) -> GpuListing: ...

    @property
    def gpu_backend(self) -> GpuBackend:
        """The backend of the fabric gate's collectives."""

    # Bootstrap: requirements besides the container engine.

    def host_steps(self, packages: Packages, bundles: Sequence[Bundle]) -> tuple[Step, ...]:
        """Return the steps that run after the engine's installation, so that it can give devices to
        containers."""
        return ()

    def fetched(self, packages: Packages) -> str:
        """Return what `host_steps` download, and from where; "" for nothing."""
        return ""

    def image_proof(
        self, spec_for: Callable[[HostView], ContainerSpec], engines: Engines, file: str
    ) -> tuple[Step, ...]:
        """Return the steps that prove, before a node starts, that devices work in the image. `file`
        is the inventory, quoted for a command."""
        return ()

    def gpus_lost(
        self, view: HostView, driver: ContainerDriver, container: Container
    ) -> str | None:
        """Return why the running node container must be recreated, if it has lost the host's
        devices; otherwise None."""
        return None

    def purge_steps(self, own: str) -> tuple[Step, ...]:
        """Return the steps with which `down --purge` undoes `host_steps`, unless another cluster
        uses the host. `own`: this cluster's directory on it."""
        return ()

    # Planning: devices that a model may use, and vLLM's arguments on them.

    @property
    def defaults(self) -> EngineDefaults: ...

    def devices(self, facts: HostFacts, count: int) -> tuple[GpuFacts, ...]:
        """Return `count` unused devices of a host, for planning memory."""
