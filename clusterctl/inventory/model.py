"""What an inventory says, as typed data. Reading and checking a file is `load`."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from clusterctl.inventory.units import Memory

Role = Literal["head", "worker"]
Accelerator = Literal["nvidia", "cpu"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""A host or cluster name: lower case letters, digits and dashes, as in DNS labels."""

NicName = Annotated[str, Field(pattern=r"^[^\s/:,=^]{1,15}$")]
"""A Linux interface name: at most 15 bytes (IFNAMSIZ), and none of the characters that
NCCL_SOCKET_IFNAME gives a meaning."""

AbsolutePath = Annotated[str, Field(pattern=r"^/")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ssh(_Model):
    """How to reach hosts. A value given for one host wins over the cluster's."""

    user: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    identity_file: Path | None = None
    known_hosts: Path | None = Field(default=None, description="default: ~/.ssh/known_hosts")
    proxy_jump: str | None = Field(default=None, description="[user@]host[:port]")
    accept_new: bool | None = Field(
        default=None, description="add the key of a host never seen; a changed key still fails"
    )
    connect_timeout: float | None = Field(default=None, gt=0, description="seconds, default 10")


class Nics(_Model):
    """Interface names by purpose; what is left out is chosen from the host's facts."""

    control: NicName | None = Field(default=None, description="Ray and the API")
    nccl: NicName | None = Field(default=None, description="NCCL_SOCKET_IFNAME")
    gloo: NicName | None = Field(default=None, description="GLOO_SOCKET_IFNAME")
    rdma: tuple[str, ...] = Field(default=(), description="RDMA devices, such as mlx5_0")


class Gpu(_Model):
    """One GPU that the inventory promises. Memory in bytes."""

    model: str | None = None
    memory: Memory | None = None


class Network(_Model):
    """What holds for all hosts: the subnet that carries the cluster's traffic."""

    subnet: IPv4Network | IPv6Network | None = None


class RayPorts(_Model):
    """Fixed ports, below Linux's ephemeral range (32768 and up), equal on all hosts."""

    gcs: int = 6379
    node_manager: int = 6380
    object_manager: int = 6381
    runtime_env_agent: int = 6382
    dashboard_agent_listen: int = 6383
    dashboard_agent_grpc: int = 6384
    metrics_export: int = 6385
    dashboard: int = 8265
    ray_client: int = 10001
    min_worker: int = 11000
    max_worker: int = 11999


class Packages(_Model):
    """Where hosts get packages from; left out: the sources the host already has."""

    pip_index: str | None = Field(
        default=None, description="simple index for what a derived image needs"
    )


class Host(_Model):
    """One machine. `name` is its key in the file."""

    name: Name = Field(exclude=True)
    address: str = Field(min_length=1, description="what SSH connects to")
    ssh: Ssh = Ssh()
    role: Role = "worker"
    node_ip: str | None = Field(default=None, description="address that Ray uses")
    nics: Nics = Nics()
    gpus: tuple[Gpu, ...] = Field(default=(), description="a count, or a list")
    labels: dict[str, str] = {}
    mounts: dict[AbsolutePath, AbsolutePath] = Field(
        default={}, description="path on the host: path in the container"
    )
    env: dict[str, str] = {}


class Inventory(_Model):
    """The whole file, defaults merged into every host."""

    cluster: Name
    image: str = Field(min_length=1)
    image_archive: Path | None = Field(
        default=None, description="a docker-archive tar on the operator's machine"
    )
    models: AbsolutePath = "/data/models"
    accelerator: Accelerator = "nvidia"
    ssh: Ssh = Ssh()
    network: Network = Network()
    ray_ports: RayPorts = RayPorts()
    packages: Packages = Packages()
    allow_unauthenticated_ray: bool = False
    env: dict[str, str] = {}
    hosts: tuple[Host, ...] = Field(min_length=1)
    source: Path = Field(default=Path(), exclude=True, description="the file it came from")

    @property
    def head(self) -> Host:
        """The one host with the role head; `load` has checked that there is one."""
        return next(host for host in self.hosts if host.role == "head")

    @property
    def workers(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.role == "worker")

    def host(self, name: str) -> Host:
        """The host of that name. Raises KeyError."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)
