"""The names of the accelerators. A new one is a line here and the module that it names.

Imports nothing, so that the inventory, a lower layer, can tell a name from a typo.
"""

from __future__ import annotations

# By name in the inventory: the module whose `ACCELERATOR` implements it.
MODULES = {
    "nvidia": "clusterctl.accelerators.nvidia",
    "cpu": "clusterctl.accelerators.cpu",
}

DEFAULT = "nvidia"
