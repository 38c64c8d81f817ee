"""What a host says of itself, as read in one round trip. Plain data, no judgement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Os:
    id: str
    """`debian`, `ubuntu`, `rhel`, ...: ID of /etc/os-release."""
    like: tuple[str, ...]
    version: str
    codename: str
    pretty: str
    architecture: str
    """As `uname -m` says: x86_64, aarch64."""
    kernel: str


@dataclass(frozen=True)
class Address:
    ip: str
    prefix: int
    scope: str
    """`global`, `link`, `host`."""


@dataclass(frozen=True)
class NicFacts:
    name: str
    mac: str
    mtu: int
    state: str
    """operstate: `up`, `down`, `unknown`."""
    speed: int | None
    """Mbit/s; None where the driver does not know (virtual NICs)."""
    kind: str
    """`physical`, `virtual`, `bridge`, `bond`, `vlan`, `loopback`."""
    numa_node: int | None
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class GpuFacts:
    index: int
    uuid: str
    model: str
    memory: int | None
    """Bytes; None where nvidia-smi says [N/A]."""
    driver: str


@dataclass(frozen=True)
class GpuReport:
    gpus: tuple[GpuFacts, ...]
    error: str | None
    """Why nvidia-smi gave none: not found, or its own words."""


@dataclass(frozen=True)
class EngineFacts:
    """The Docker engine; `error` is set when the client is there and the daemon is not."""

    installed: bool
    running: bool
    version: str
    api_version: str
    storage: str
    """`overlay2`, `overlayfs` (the containerd image store), ..."""
    data_root: str
    cgroup_driver: str
    cgroup_version: str
    cdi_spec_dirs: tuple[str, ...]
    runtimes: tuple[str, ...]
    rootless: bool
    error: str | None


@dataclass(frozen=True)
class Disk:
    path: str
    """The path asked for; the file system may be mounted above it."""
    total: int
    free: int
    """Bytes."""


@dataclass(frozen=True)
class HostFacts:
    """All of it, at one moment."""

    hostname: str
    hostname_addresses: tuple[str, ...]
    """What the host resolves its own name to."""
    machine_id: str
    boot_id: str
    os: Os
    cpus: int
    memory: int
    """Bytes."""
    shm: int
    """Size of /dev/shm in bytes."""
    disks: tuple[Disk, ...]
    nics: tuple[NicFacts, ...]
    default_nic: str | None
    rdma_devices: tuple[str, ...]
    gpus: GpuReport
    engine: EngineFacts
    cgroup_version: int
    """1 (or hybrid) or 2."""
    nofile_hard: int
    clock: float
    """Unix seconds when the probe ran."""
    clock_offset: float
    """Seconds ahead of the operator's clock, less half the round trip."""
    user: str
    root: bool
    """The user is root, or may become root by sudo."""
    sudo_error: str | None
    python3: str | None
    listening_ports: tuple[int, ...]
    """TCP ports in use, from /proc/net/tcp and tcp6."""

    def nic(self, name: str) -> NicFacts | None:
        return next((nic for nic in self.nics if nic.name == name), None)

    def nic_with(self, ip: str) -> NicFacts | None:
        """The NIC that holds `ip`."""
        return next(
            (nic for nic in self.nics if any(a.ip == ip for a in nic.addresses)),
            None,
        )
