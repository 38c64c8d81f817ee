"""Requirements as a command judges them: with what the inventory's accelerator asks of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts import requirements
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory


def problems(
    inventory: Inventory, facts: Mapping[str, HostFacts], **arguments: Any
) -> tuple[RequirementsNotMet, ...]:
    devices = accelerator_named(inventory.accelerator)
    return requirements.problems(inventory, facts, devices, **arguments)


def notes(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[str, ...]:
    return requirements.notes(inventory, facts, accelerator_named(inventory.accelerator))
