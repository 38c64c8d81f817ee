"""Load an accelerator by its name in the inventory."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from clusterctl.accelerators.names import MODULES
from clusterctl.accelerators.protocol import Accelerator


def accelerator_named(name: str) -> Accelerator:
    """Return the accelerator with that name. Raises KeyError."""
    return cast("Accelerator", import_module(MODULES[name]).ACCELERATOR)
