"""An inventory's accelerator by its name."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from clusterctl.accelerators.names import MODULES
from clusterctl.accelerators.protocol import Accelerator


def accelerator_named(name: str) -> Accelerator:
    """The one object that knows what is particular to it. Raises KeyError."""
    return cast("Accelerator", import_module(MODULES[name]).ACCELERATOR)
