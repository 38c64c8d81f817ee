"""What must be on a host before its facts are complete: Python, the engine, its way to the GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.engine.plan import Stage
from clusterctl.inventory.model import Host, Inventory
from clusterctl.packages.bundle import Bundle, open_bundles
from clusterctl.steps.container_engine import ContainerEngine
from clusterctl.steps.host_python import HostPython


def engine_stages(inventory: Inventory, hosts: Iterable[Host]) -> tuple[Stage, ...]:
    """Python comes first: what tries the hosts' ways to each other runs on it.

    Raises UsageError when the packages that the inventory names cannot be read.
    """
    names = tuple(host.name for host in hosts)
    bundles = brought_along(inventory)
    python = Stage("Python", names, (HostPython(bundles),))
    engine = Stage("Container engine", names, (ContainerEngine(inventory.packages, bundles),))
    accelerator = accelerator_named(inventory.accelerator)
    gpus = accelerator.host_steps(inventory.packages, bundles)
    return (
        python,
        engine,
        *((Stage("GPUs in containers", names, gpus),) if gpus else ()),
    )


def brought_along(inventory: Inventory) -> tuple[Bundle, ...]:
    path = inventory.packages.offline
    return open_bundles(path) if path else ()
