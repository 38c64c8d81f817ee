"""Facts that a host reports in one round trip. Plain data, no judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address


@dataclass(frozen=True)
class GpuFacts:
    index: int
    uuid: str
    model: str
    # Bytes; None if nvidia-smi prints [N/A]. For a GPU that shares the CPU's memory: all of it.
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
    # Action that the driver recommends: `None`, `Reset`, `Reboot`, `Drain and Reset`, ...; empty if
    # the driver is too old to report it
    recovery: str = ""
    # A bad row of its memory will be replaced by a spare one at the next reset
    remap_pending: bool = False
    remap_failed: bool = False  # It has a bad row of memory, and no spare row
    unified: bool = False  # It shares the host's memory: `memory` is the host's
    compute_mode: str = ""  # `Default`, `Exclusive_Process`, `Prohibited`; empty if not reported


@dataclass(frozen=True)
class Xid:
    """An error that the driver wrote to the kernel's log."""

    code: int
    bus: str  # As in the log: `0000:3b:00`
    text: str  # The log line's text after the code


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    gpu: str  # UUID
    pid: int
    name: str
    memory: int | None  # Bytes
    container: str  # ID of the container it runs in; empty if none is known
    cluster: str = ""  # The cluster that the container belongs to


@dataclass(frozen=True)
class GpuReport:
    gpus: tuple[GpuFacts, ...]
    # Why nvidia-smi lists none: not found, or its message. With GPUs: further messages.
    error: str | None
    pci_devices: int = 0  # NVIDIA GPUs that the PCI bus shows, with or without a driver
    xids: tuple[Xid, ...] = ()  # Since the driver was loaded, oldest first
    processes: tuple[GpuProcess, ...] = ()
    nouveau: bool = False  # The kernel's own driver for NVIDIA's GPUs is loaded
    module: str = ""  # Version of the kernel module that is loaded
    # Device nodes that a container needs: /dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm, ...
    nodes: tuple[str, ...] = ()
    # State of nvidia-fabricmanager in systemd; None on a host without NVSwitches
    fabric_manager: str | None = None
    silent: bool = False  # nvidia-smi did not answer in time
    # Lines of the kernel's log about the driver and its module, without Xids, oldest first
    log: tuple[str, ...] = ()
    passed_through: tuple[str, ...] = ()  # PCI addresses of GPUs that vfio-pci holds
    module_kernels: tuple[str, ...] = ()  # Kernels whose directory has the driver's module
    secure_boot: bool | None = None  # None if the firmware does not tell, as without EFI
    # How the IOMMU treats each GPU: `DMA`, `DMA-FQ` (it translates), `identity`
    iommu: tuple[str, ...] = ()
    acs_bridges: tuple[str, ...] = ()  # PCI bridges that redirect requests between devices (ACS)


# Docker's default data root: always measured, since the host may not have an engine yet
ENGINE_ROOT = "/var/lib/docker"
CONTAINERD_ROOT = "/var/lib/containerd"  # Where the containerd image store has images


@dataclass(frozen=True)
class Os:
    id: str  # `debian`, `ubuntu`, `rhel`, ...: ID of /etc/os-release
    like: tuple[str, ...]
    version: str
    codename: str  # Of the Ubuntu or Debian release; a derivative's own only if it names none
    pretty: str
    architecture: str  # As `uname -m` prints it: x86_64, aarch64
    kernel: str

    @property
    def debian_like(self) -> bool:
        """Whether this is Debian, Ubuntu or a derivative."""
        return bool({self.id, *self.like} & {"debian", "ubuntu"})


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
    speed: int | None  # Mbit/s; None if the driver does not report it (virtual NICs)
    # `physical`, `wlan`, `bridge`, `bond`, `vlan`, `loopback`; of others what `ip -d` calls them
    # (`team`, `openvswitch`, `wireguard`, `dummy`, ...), `virtual` if it does not
    kind: str
    numa_node: int | None
    addresses: tuple[Address, ...]
    # NICs below this one: the members of a bond or bridge, the parent of a VLAN
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()

    def has_address_in(self, subnet: IPv4Network | IPv6Network) -> bool:
        return any(ip_address(address.ip) in subnet for address in self.addresses)


@dataclass(frozen=True)
class HostRoute:
    """An IPv4 route of the main table."""

    nic: str
    network: IPv4Network
    metric: int
    direct: bool  # Without a gateway: to a network of the NIC's own


@dataclass(frozen=True)
class Gid:
    """A non-zero entry of a port's GID table, which holds its addresses."""

    index: int
    gid: str
    type: str  # `RoCE v2`, `IB/RoCE v1`; empty if the kernel does not report it
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
    active: bool  # One of its ports is up
    rate: str  # As the kernel prints it: `200 Gb/sec (4X HDR)`
    ports: tuple[RdmaPort, ...] = ()  # By number; `link_layer` and `rate` are those of the first
    node_type: str = ""  # `1: CA`, `4: RNIC` (iWARP), `7: unspecified` (EFA), ...


@dataclass(frozen=True)
class EngineFacts:
    """The Docker engine; `error` is set if the client is installed but the daemon does not run."""

    installed: bool
    running: bool
    version: str
    data_root: str
    cdi_spec_dirs: tuple[str, ...]
    runtimes: tuple[str, ...]
    rootless: bool
    error: str | None
    client: str = ""  # Path of the `docker` command
    # Images are stored in containerd, compressed layers beside unpacked ones
    containerd_store: bool = False
    hung: bool = False  # The daemon does not answer
    podman: bool = False  # The `docker` command is Podman
    default_runtime: str = ""  # `runc`, `nvidia`, ...
    remapped: bool = False  # userns-remap: root in a container is another user outside
    desktop: bool = False  # Docker Desktop: the engine runs in a virtual machine

    @property
    def closed(self) -> bool:
        """Whether the user may not access the daemon, so that its state is unknown."""
        return "permission denied" in (self.error or "")

    @property
    def snap(self) -> bool:
        """Whether Docker is a snap, which sees only part of the file system."""
        return "/snap/" in f"{self.client}/" or self.data_root.startswith("/var/snap/")


@dataclass(frozen=True)
class ContainerFacts:
    """One of our containers, found by its label."""

    id: str
    name: str
    image: str  # The image's ID
    labels: Mapping[str, str]
    state: str  # `created`, `running`, `paused`, `restarting`, `exited`, `dead`
    exit_code: int
    started_at: str  # RFC 3339; of the last start
    restarts: int  # By the restart policy, since the container was created
    error: str = ""  # The engine's reason why it could not start


@dataclass(frozen=True)
class ImageFacts:
    """The image that the probe was asked about."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    # RootFS layers: equal between hosts for equal content, unlike `id`, which depends on the image
    # store
    layers: tuple[str, ...]
    size: int  # Bytes, as the image store counts them
    architecture: str
    labels: Mapping[str, str]
    # CUDA_VERSION and NVIDIA_REQUIRE_CUDA of its environment, if set
    cuda: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Disk:
    path: str  # The requested path; the file system may be mounted above it
    total: int
    free: int  # Bytes


@dataclass(frozen=True)
class HostFacts:
    hostname: str
    hostname_addresses: tuple[str, ...]  # Addresses that the host's own name resolves to
    machine_id: str
    boot_id: str
    os: Os
    cpus: int
    memory: int  # Bytes
    shm: int  # Size of /dev/shm in bytes
    disks: tuple[Disk, ...]
    nics: tuple[NicFacts, ...]
    default_nic: str | None
    gpus: GpuReport
    engine: EngineFacts
    cgroup_version: int  # 1 (or hybrid) or 2
    nofile_hard: int  # Open files: the engine's hard limit if it runs, else the session's
    clock: float  # Unix seconds when the probe ended
    # Seconds ahead of the operator's clock; too low by the time that the answer took to arrive
    clock_offset: float
    user: str
    root: bool  # The user is root, or can become root by sudo
    sudo_error: str | None
    python3: str | None  # Path of a Python for clusterctl's programs (transport/python.py)
    listening_ports: tuple[int, ...]  # TCP ports in use, from /proc/net/tcp and tcp6
    uid: int = -1  # Of the user that the probe ran as: 0 under sudo
    python3_version: str = ""  # `3.11`: of the Python found, usable or not
    # That Python lacks a part of its standard library, as Debian's python3-minimal does
    python3_minimal: bool = False
    rdma: tuple[RdmaDevice, ...] = ()
    # Such as /dev/infiniband/uverbs0. Some kernels have /dev/infiniband/rdma_cm without any device:
    # use `rdma` to find out whether there is one.
    rdma_nodes: tuple[str, ...] = ()
    # Bytes that a process may lock in memory; None if the shell does not report it
    memlock_hard: int | None = None
    # The module nvidia_peermem is loaded: RDMA devices access GPU memory directly
    peer_memory: bool = False
    # NUMA nodes of the GPUs; empty on a host with one NUMA node, or without NVIDIA's driver
    gpu_numa_nodes: tuple[int, ...] = ()
    cdi_specs: tuple[str, ...] = ()  # Files in /etc/cdi and /var/run/cdi
    # The kernel can restrict the devices of containers: the control groups for it are mounted
    device_cgroup: bool = True
    systemd: bool = True  # It is the init system, which starts Docker
    selinux: str = ""  # `enforcing` or `permissive`; empty where the kernel runs without SELinux
    runtimes: tuple[str, ...] = ()  # Other installed container runtimes: `podman`, `k3s`, ...
    # Ports that the kernel gives to outgoing connections: the first and the last; () if not known
    ephemeral_ports: tuple[int, ...] = ()
    containerd_root: str = CONTAINERD_ROOT
    # The address of this host that SSH connected to; empty under sudo, which hides it
    ssh_ip: str = ""
    routes: tuple[HostRoute, ...] = ()
    # What rules over incoming connections: `firewalld`, `ufw`, `iptables` or `nftables`;
    # empty if none of them does
    firewall: str = ""
    shm_free: int | None = None  # Bytes of /dev/shm that are free
    # One sentence for each fact that could not be read; its field has the empty value: 0, "", () or
    # None.
    unknown: tuple[str, ...] = ()

    @property
    def python_words(self) -> str:
        """Description of the Python found, for the user."""
        if not self.python3_version:
            return "no python3"
        lack = " without its standard library" if self.python3_minimal else ""
        return f"Python {self.python3_version}{lack}"

    def disk(self, path: str) -> Disk | None:
        """Return the measured disk of `path`, or of the nearest measured directory above it."""
        above = [d for d in self.disks if f"{path}/".startswith(f"{d.path.rstrip('/')}/")]
        return max(above, key=lambda disk: len(disk.path), default=None)

    def without(self, ip: str) -> HostFacts:
        """Return the facts as if no interface had that address."""
        nics = [
            replace(nic, addresses=tuple(each for each in nic.addresses if each.ip != ip))
            for nic in self.nics
        ]
        return replace(self, nics=tuple(nics))

    def nic(self, name: str) -> NicFacts | None:
        return next((nic for nic in self.nics if nic.name == name), None)

    def nic_with(self, ip: str) -> NicFacts | None:
        """Return the NIC that holds `ip`, which may be a name, or None."""
        try:
            wanted = str(ip_address(ip))
        except ValueError:
            return None
        return next((nic for nic in self.nics if any(a.ip == wanted for a in nic.addresses)), None)
