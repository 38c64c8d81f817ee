"""The names of the accelerators. To add one, add a line here and its module.

Imports nothing, so that the inventory, a lower layer, can validate names.
"""

from __future__ import annotations

# Name in the inventory: the module whose `ACCELERATOR` implements it.
MODULES = {
    "nvidia": "clusterctl.accelerators.nvidia",
    "cpu": "clusterctl.accelerators.cpu",
}

DEFAULT = "nvidia"

# The lab's hosts have a CDI specification with this device, which gives containers nothing: their
# engines start a node container as they would with GPUs.
LAB_DEVICE = "clusterctl.lab/cpu=all"
LAB_SPECIFICATION = "/etc/cdi/clusterctl-lab.json"
