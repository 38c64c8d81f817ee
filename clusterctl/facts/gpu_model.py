"""What a host says of its GPUs. Plain data, no judgement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuFacts:
    index: int
    uuid: str
    model: str
    # Bytes; None where nvidia-smi says [N/A]. Of a GPU that shares the CPU's memory: all of it.
    memory: int | None
    driver: str
    memory_used: int | None = None
    mig: bool = False  # Split into MIG instances
    compute_capability: str = ""
    pci_bus: str = ""
    uncorrected_ecc: int | None = None  # Errors since the GPU was last reset; None without ECC
    persistence: bool | None = None
    # Of an NVSwitch machine's GPU: `Completed`, `In Progress`, `Not Started`; empty elsewhere
    fabric_state: str = ""
    # What the driver says the GPU needs: `None`, `Reset`, `Reboot`, `Drain and Reset`, ...; empty
    # where the driver is too old to say
    recovery: str = ""
    # A row of its memory is bad and is swapped for a spare one at the next reset
    remap_pending: bool = False
    remap_failed: bool = False  # A row of its memory is bad and there was no spare one
    unified: bool = False  # It has no memory of its own: `memory` is the host's


@dataclass(frozen=True)
class Xid:
    """An error that the driver wrote to the kernel's log."""

    code: int
    bus: str  # As in the log: `0000:3b:00`
    text: str  # What follows the code there


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    gpu: str  # UUID
    pid: int
    name: str
    memory: int | None  # Bytes
    container: str  # ID of the container it runs in, empty where none shows
    cluster: str = ""  # The cluster whose container that is


@dataclass(frozen=True)
class GpuReport:
    gpus: tuple[GpuFacts, ...]
    # Why nvidia-smi gave none: not found, or its own words. With GPUs, what it says besides.
    error: str | None
    pci_devices: int = 0  # NVIDIA GPUs that the PCI bus shows, with or without a driver
    xids: tuple[Xid, ...] = ()  # Since the driver was loaded, oldest first
    processes: tuple[GpuProcess, ...] = ()
    nouveau: bool = False  # The kernel's own driver for NVIDIA's GPUs is loaded
    module: str = ""  # Version of the kernel module that is loaded
    # Device nodes that a container needs: /dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm,
    nodes: tuple[str, ...] = ()
    # What systemd says of nvidia-fabricmanager; None on a host without NVSwitches
    fabric_manager: str | None = None
