"""What a host says of itself, as read in one round trip. Plain data, no judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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


# Where Docker keeps images unless told otherwise: always measured, since the host may have no
# engine yet to ask
ENGINE_ROOT = "/var/lib/docker"


@dataclass(frozen=True)
class Os:
    id: str  # `debian`, `ubuntu`, `rhel`, ...: ID of /etc/os-release
    like: tuple[str, ...]
    version: str
    codename: str
    pretty: str
    architecture: str  # As `uname -m` says: x86_64, aarch64
    kernel: str


@dataclass(frozen=True)
class Address:
    ip: str
    prefix: int
    scope: str  # `global`, `link`, `host`


@dataclass(frozen=True)
class NicFacts:
    name: str
    mac: str
    mtu: int
    state: str  # operstate: `up`, `down`, `unknown`
    speed: int | None  # Mbit/s; None where the driver does not know (virtual NICs)
    kind: str  # `physical`, `wlan`, `virtual`, `bridge`, `bond`, `vlan`, `loopback`
    numa_node: int | None
    addresses: tuple[Address, ...]
    # NICs under this one: the members of a bond or bridge, the parent of a VLAN
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gid:
    """An entry of a port's table of addresses that is not all zero."""

    index: int
    gid: str
    type: str  # `RoCE v2`, `IB/RoCE v1`; empty where the kernel does not tell
    nic: str


@dataclass(frozen=True)
class RdmaPort:
    number: int  # From 1
    active: bool
    link_layer: str  # `InfiniBand`, `Ethernet` (RoCE)
    rate: float | None  # Mbit/s
    gids: tuple[Gid, ...]


@dataclass(frozen=True)
class RdmaDevice:
    """An InfiniBand or RoCE device."""

    name: str
    nics: tuple[str, ...]
    link_layer: str  # `InfiniBand`, `Ethernet`
    active: bool  # A port of it is up
    rate: str  # In the kernel's words: `200 Gb/sec (4X HDR)`
    ports: tuple[RdmaPort, ...] = ()  # By number; `link_layer` and `rate` are those of the first


@dataclass(frozen=True)
class EngineFacts:
    """The Docker engine; `error` is set when the client is there and the daemon is not."""

    installed: bool
    running: bool
    version: str
    api_version: str
    storage: str  # `overlay2`, `overlayfs` (the containerd image store),
    data_root: str
    cgroup_driver: str
    cgroup_version: str
    cdi_spec_dirs: tuple[str, ...]
    runtimes: tuple[str, ...]
    rootless: bool
    error: str | None
    client: str = ""  # Path of the `docker` command
    # Images live in containerd, compressed layers beside unpacked ones
    containerd_store: bool = False
    hung: bool = False  # The daemon was asked and did not answer
    podman: bool = False  # `docker` is Podman under that name
    live_restore: bool = False  # Containers keep running while the engine restarts
    default_runtime: str = ""  # `runc`, `nvidia`,
    remapped: bool = False  # userns-remap: root in a container is another user outside
    desktop: bool = False  # Docker Desktop: the engine runs in a virtual machine

    @property
    def snap(self) -> bool:
        """Docker from a snap: it sees only part of the file system."""
        return "/snap/" in f"{self.client}/" or self.data_root.startswith("/var/snap/")


@dataclass(frozen=True)
class ContainerFacts:
    """A container of ours, found by its label."""

    id: str
    name: str
    image: str  # The image's ID
    labels: Mapping[str, str]
    state: str  # `created`, `running`, `paused`, `restarting`, `exited`, `dead`
    exit_code: int
    started_at: str  # RFC 3339; of the last start
    restarts: int  # By the restart policy, since the container was made
    oom_killed: bool = False
    error: str = ""  # Why the engine could not start it


@dataclass(frozen=True)
class ImageFacts:
    """The image that the probe was asked for."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    # RootFS layers: equal between hosts for equal content, unlike `id`, which depends on the image
    # store
    layers: tuple[str, ...]
    size: int  # Bytes, as the image store counts them
    architecture: str
    labels: Mapping[str, str]
    # CUDA_VERSION and NVIDIA_REQUIRE_CUDA of its environment, where they are set
    cuda: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Disk:
    path: str  # The path asked for; the file system may be mounted above it
    total: int
    free: int  # Bytes


@dataclass(frozen=True)
class HostFacts:
    """All of it, at one moment."""

    hostname: str
    hostname_addresses: tuple[str, ...]  # What the host resolves its own name to
    machine_id: str
    boot_id: str
    os: Os
    cpus: int
    memory: int  # Bytes
    shm: int  # Size of /dev/shm in bytes
    disks: tuple[Disk, ...]
    nics: tuple[NicFacts, ...]
    default_nic: str | None
    rdma_devices: tuple[str, ...]
    gpus: GpuReport
    engine: EngineFacts
    cgroup_version: int  # 1 (or hybrid) or 2
    nofile_hard: int  # Open files: the engine's hard limit where it runs, else that of the session
    clock: float  # Unix seconds when the probe ended
    # Seconds ahead of the operator's clock; too low by the time of the answer's way back
    clock_offset: float
    user: str
    root: bool  # The user is root, or may become root by sudo
    sudo_error: str | None
    python3: str | None  # Path of a Python that runs what clusterctl sends (transport/python.py)
    listening_ports: tuple[int, ...]  # TCP ports in use, from /proc/net/tcp and tcp6
    uid: int = -1  # Of the user whom the probe ran as: 0 under sudo
    memory_available: int | None = None  # Bytes, in the kernel's estimate
    python3_version: str = ""  # `3.11`, of the one that was found, whether it is good enough or not
    # What was found lacks a part of its standard library, as Debian's python3-minimal does
    python3_minimal: bool = False
    rdma: tuple[RdmaDevice, ...] = ()
    # Such as /dev/infiniband/uverbs0. Some kernels have /dev/infiniband/rdma_cm without any device:
    # ask `rdma` whether there is one.
    rdma_nodes: tuple[str, ...] = ()
    # Bytes that a process may lock in memory; None where the shell does not tell
    memlock_hard: int | None = None
    # The module nvidia_peermem is loaded: RDMA devices reach GPU memory by themselves
    peer_memory: bool = False
    # Where the GPUs are; empty on a host with one NUMA node, or without NVIDIA's driver
    gpu_numa_nodes: tuple[int, ...] = ()
    cdi_specs: tuple[str, ...] = ()  # Files in /etc/cdi and /var/run/cdi
    nvidia_ctk: str | None = None  # Path of the NVIDIA container toolkit's command
    # The kernel can keep devices from containers: control groups are there and mounted
    device_cgroup: bool = True
    runtimes: tuple[str, ...] = ()  # Other container runtimes that are installed: `podman`, `k3s`,
    # The address of this host that SSH came in by; empty under sudo, which hides it
    ssh_ip: str = ""
    # What could not be read, a sentence each. The field it would fill holds its empty value: 0, "",
    # () or None.
    unknown: tuple[str, ...] = ()

    @property
    def python_words(self) -> str:
        """What Python was found, for people."""
        if not self.python3_version:
            return "no python3"
        lack = " without its standard library" if self.python3_minimal else ""
        return f"Python {self.python3_version}{lack}"

    def disk(self, path: str) -> Disk | None:
        """The measured disk of `path`, or of the longest measured directory above it."""
        above = [d for d in self.disks if f"{path}/".startswith(f"{d.path.rstrip('/')}/")]
        return max(above, key=lambda disk: len(disk.path), default=None)

    def nic(self, name: str) -> NicFacts | None:
        return next((nic for nic in self.nics if nic.name == name), None)

    def nic_with(self, ip: str) -> NicFacts | None:
        """The NIC that holds `ip`."""
        return next(
            (nic for nic in self.nics if any(a.ip == ip for a in nic.addresses)),
            None,
        )
