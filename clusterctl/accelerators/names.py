"""Which accelerators there are. A new one is a line here and the module that it names.

Imports nothing, so that the inventory, which stands below, can tell a name from a slip.
"""

from __future__ import annotations

# Name in the inventory: the module whose `ACCELERATOR` knows all about it.
MODULES = {
    "nvidia": "clusterctl.accelerators.nvidia",
    "cpu": "clusterctl.accelerators.cpu",
}

DEFAULT = "nvidia"
