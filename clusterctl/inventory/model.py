"""The inventory as typed data. `load` reads and checks the file."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from clusterctl.accelerators.names import DEFAULT, MODULES
from clusterctl.inventory.values import (
    WRITABLE,
    Address,
    EnvName,
    EnvValue,
    FixedPort,
    HostPath,
    ImageReference,
    IndexUrl,
    IpAddress,
    JumpHost,
    LabelName,
    LabelValue,
    Memory,
    MountTarget,
    Name,
    NicName,
    NoProxy,
    PackageVersion,
    ProxyUrl,
    RdmaDevice,
    Sha256,
    Subnet,
    UserName,
    did_you_mean,
)

Role = Literal["head", "worker"]


def _known_accelerator(name: str) -> str:
    if name not in MODULES:
        known = tuple(MODULES)
        near = did_you_mean(name, known)
        raise ValueError(f'must be {" or ".join(known)}, not "{name}"{near}')
    return name


AcceleratorName = Annotated[
    str,
    AfterValidator(_known_accelerator),
    WithJsonSchema({"enum": list(MODULES), "type": "string"}),
]

MOST_GPUS = 64  # More than any host has, so a larger count is a typo


class _Model(BaseModel):
    """Immutable; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Ssh(_Model):
    """How to reach hosts. A host's own value takes precedence over the cluster's."""

    user: UserName | None = Field(
        default=None, description="User to log in as. Default: ~/.ssh/config, else your user name."
    )
    port: int | None = Field(
        default=None, ge=1, le=65535, description="Default: ~/.ssh/config, else 22."
    )
    identity_file: Path | None = Field(
        default=None,
        description="Private key. Relative paths start at the inventory file, ~ is your home. "
        "Default: the agent's keys and the usual files in ~/.ssh.",
    )
    known_hosts: Path | None = Field(
        default=None, description="File with the hosts' keys. Default: ~/.ssh/known_hosts."
    )
    proxy_jump: JumpHost | None = Field(
        default=None,
        description="Jump host: [user@]host[:port]; several with commas, the one nearest to you "
        "first. Default: ~/.ssh/config.",
    )
    accept_new: bool | None = Field(
        default=None,
        description="Add the keys of unknown hosts to known_hosts. A changed key still fails. "
        "Default: false.",
    )
    connect_timeout: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Seconds until a host that does not answer counts as down. Default: 10.",
    )


class Nics(_Model):
    """Interface names by purpose. Missing ones are chosen from the host's facts."""

    control: NicName | None = Field(
        default=None,
        description="Carries Ray and the API: its address becomes the node's, unless node_ip is "
        "set.",
    )
    nccl: NicName | None = Field(
        default=None,
        description="Carries the tensors between GPUs (NCCL_SOCKET_IFNAME): the fastest one.",
    )
    gloo: NicName | None = Field(
        default=None, description="Carries the ranks' CPU messages (GLOO_SOCKET_IFNAME)."
    )
    rdma: tuple[RdmaDevice, ...] | None = Field(
        default=None,
        description="RDMA devices for NCCL (NCCL_IB_HCA), such as mlx5_0. An empty list turns "
        "RDMA off. Default: the fastest active ones, if every host has some.",
    )


class Gpu(_Model):
    """One GPU that the inventory declares. Omitted fields match anything."""

    model: str | None = Field(
        default=None, min_length=1, description="Name as nvidia-smi -L shows it."
    )
    memory: Memory | None = Field(
        default=None, description="Such as 24 GiB or 80 GB; a bare number is bytes."
    )


def _gpus_from_count(value: Any) -> Any:
    """Expand a count: `2` declares two GPUs of any model and memory."""
    counted = isinstance(value, int) and not isinstance(value, bool)
    count = value if counted else len(value) if isinstance(value, list | tuple) else 0
    if not 0 <= count <= MOST_GPUS:
        raise ValueError(f"must be 0 to {MOST_GPUS} GPUs, not {count}")
    if counted:
        return tuple({} for _ in range(count))
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a count or a list of GPUs, not {value}")  # noqa: TRY004
    return tuple(value)


Gpus = Annotated[tuple[Gpu, ...], BeforeValidator(_gpus_from_count)]


class Network(_Model):
    """Network settings of all hosts."""

    subnet: Subnet | None = Field(
        default=None,
        description="The network that Ray and the API use: each host's address in it becomes the "
        "node's, and its interface serves all purposes that the host's nics leave unset.",
    )
    rdma: bool = Field(
        default=True,
        description="false: NCCL uses sockets even where hosts have RDMA devices.",
    )
    firewall: bool = Field(
        default=False,
        description="true: on each host, a separate nftables table closes the ports of Ray and "
        "vLLM to all but the cluster's hosts.",
    )
    trusted: tuple[Subnet, ...] = Field(
        default=(),
        description="Networks that the firewall admits to all ports, besides the cluster's hosts.",
    )
    public: bool = Field(
        default=False,
        description="true: hosts may have public addresses without `firewall`, since something "
        "in front of them closes the ports of Ray and vLLM.",
    )


class RayPorts(_Model):
    """Fixed ports, below Linux's ephemeral range (32768 and up), the same on all hosts."""

    gcs: FixedPort = Field(default=6379, description="Head: where workers join.")
    node_manager: FixedPort = 6380
    object_manager: FixedPort = 6381
    runtime_env_agent: FixedPort = 6382
    dashboard_agent_listen: FixedPort = 6383
    dashboard_agent_grpc: FixedPort = 6384
    metrics_export: FixedPort = 6385
    dashboard: FixedPort = Field(default=8265, description="Head: on 127.0.0.1 only.")
    ray_client: FixedPort = 10001
    min_worker: FixedPort = Field(default=11000, description="First port of Ray's own workers.")
    max_worker: FixedPort = Field(default=11999, description="Last port of Ray's own workers.")

    @model_validator(mode="after")
    def _all_differ(self) -> Self:
        """Raise ValueError if two of Ray's listeners have the same port."""
        single = {name: port for name, port in self if name not in {"min_worker", "max_worker"}}
        names: dict[int, str] = {}
        for name, port in single.items():
            if port in names:
                raise ValueError(f"{names[port]} and {name} are both {port}")
            if self.min_worker <= port <= self.max_worker:
                raise ValueError(f"{name} {port} lies between min_worker and max_worker")
            names[port] = name
        if self.min_worker > self.max_worker:
            raise ValueError(f"min_worker {self.min_worker} is above max_worker {self.max_worker}")
        return self


class PackageSource(_Model):
    """A package repository: the vendor's own, or a mirror of it."""

    url: IndexUrl | None = Field(
        default=None, description="URL of a mirror with the vendor's layout. Default: the vendor's."
    )
    key: Path | None = Field(
        default=None,
        description="The public key that signs it, on the operator's machine. Default: the "
        "vendor's, downloaded from the repository and compared with its known fingerprint. "
        "Relative paths start at the inventory file.",
    )


class Proxy(_Model):
    """An HTTP proxy between the hosts and everything outside the cluster."""

    http: ProxyUrl | None = Field(default=None, description="Proxy for http:// URLs.")
    https: ProxyUrl | None = Field(default=None, description="Proxy for https:// URLs.")
    no_proxy: tuple[NoProxy, ...] = Field(
        default=(),
        description="Hosts (registry.corp), domains (.corp) and networks reached without the "
        "proxy. The cluster's own names and addresses are always added.",
    )

    @model_validator(mode="after")
    def _has_a_url(self) -> Self:
        if self.http is None and self.https is None:
            raise ValueError("needs `http` or `https`: the URL of the proxy")
        return self


class Packages(_Model):
    """Where hosts get packages from. Default: the sources that a host already has."""

    offline: Path | None = Field(
        default=None,
        description="Packages on the operator's machine, for hosts without access to any source: "
        "a directory or a tar from `clusterctl packages bundle`, or a directory of .deb or .rpm "
        "files or with Docker's static archive. Relative paths start at the inventory file.",
    )
    sums: tuple[Sha256, ...] = Field(
        default=(),
        description="SHA-256 of the SHA256SUMS of each bundle in `offline`, as `packages bundle` "
        "prints it. With it, no other bundle is used. Default: any.",
    )
    docker: PackageSource | None = Field(
        default=None,
        description="Docker's own packages instead of the distribution's; {} for "
        "download.docker.com, which RHEL and its derivatives always use.",
    )
    nvidia: PackageSource = Field(
        default=PackageSource(), description="NVIDIA's container toolkit, on hosts with GPUs."
    )
    toolkit: PackageVersion | None = Field(
        default=None,
        description="Version of NVIDIA's container toolkit, such as 1.19.1-1, for all four of "
        "its packages. Default: the one that a host has, or the one that this version of "
        "clusterctl was made with.",
    )
    pip_index: IndexUrl | None = Field(
        default=None,
        description="URL of a simple index (PEP 503), for what the node image needs.",
    )
    ca: Path | None = Field(
        default=None,
        description="CA certificates in PEM on the operator's machine, trusted in addition to "
        "the usual ones for registries, package sources, the package index and model hubs. "
        "Relative paths start at the inventory file.",
    )
    proxy: Proxy | None = Field(
        default=None,
        description="HTTP proxy of the hosts for all downloads: by Docker, the package manager, "
        "pip in an image build, and from model hubs. Ray and vLLM never use it.",
    )


ALL_HOSTS = "all"


def _host_names(value: Any) -> Any:
    if value == ALL_HOSTS:
        return (ALL_HOSTS,)
    return tuple(value) if isinstance(value, list) else value


HostNames = Annotated[
    tuple[Name, ...],
    BeforeValidator(_host_names),
    WithJsonSchema(
        {"anyOf": [{"const": ALL_HOSTS}, {"type": "array", "items": {"type": "string"}}]}
    ),
]


KEEPERS = 3  # Hosts with a copy of the head's documents


class GatewayAccess(_Model):
    """How clients reach services."""

    hosts: HostNames = Field(
        default=(),
        description="Hosts with a gateway besides the head, each for all services: their names, "
        "or all. Default: only the head.",
    )
    low_ports: bool = Field(
        default=False,
        description="true: services may listen below port 1024, such as `serve --port 443`. Node "
        "containers then have the capability NET_BIND_SERVICE.",
    )
    tls: bool = Field(
        default=False,
        description="true: clients use https, with `certificate`, else with one that bootstrap "
        "makes for the cluster.",
    )
    certificate: Path | None = Field(
        default=None,
        description="PEM file on the operator's machine: the certificate, then its issuers. "
        "Relative paths start at the inventory file.",
    )
    key: Path | None = Field(
        default=None, description="PEM file of its private key, without a password."
    )
    names: tuple[Address, ...] = Field(
        default=(),
        description="Host names and addresses that clients use for the gateway, besides the "
        "head's; the certificate that is made covers them.",
    )
    virtual_ip: IPv4Address | None = Field(
        default=None,
        description="A free address in a network of the hosts with a gateway. keepalived assigns "
        "it to one of them, and to another if that one fails.",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("needs both certificate and key, or neither")
        if self.certificate and not self.tls:
            raise ValueError("has a certificate, but no `tls: true`")
        if self.virtual_ip and not self.hosts:
            raise ValueError("has a virtual_ip, but no `hosts` that could take it over")
        return self


class Host(_Model):
    """One machine. `name` is its key in the file."""

    name: Name = Field(exclude=True)
    address: Address = Field(description="What SSH connects to: host name, IPv4 or IPv6 address.")
    ssh: Ssh = Field(default=Ssh(), description="What differs from the cluster's ssh.")
    role: Role = Field(
        default="worker",
        description="One host is the head: it runs Ray's head and answers requests. A single "
        "host is always the head.",
    )
    node_ip: IpAddress | None = Field(
        default=None,
        description="Address that Ray uses. Default: the one on nics.control, else in "
        "network.subnet, else chosen: where SSH connects, if all hosts share that subnet.",
    )
    nics: Nics = Field(default=Nics(), description="Interfaces by purpose.")
    gpus: Gpus = Field(
        default=(),
        description="The host's GPUs: a count, or a list with model and memory. A host with "
        "fewer is an error.",
    )
    labels: dict[LabelName, LabelValue] = Field(
        default={}, description="Your own labels, for --limit label=value."
    )
    mounts: dict[HostPath, MountTarget] = Field(
        default={},
        description="More directories for the container: path on the host: path in the "
        "container, read-only unless :rw follows.",
    )
    env: dict[EnvName, EnvValue] = Field(
        default={}, description="Environment of this host's container; overrides the cluster's."
    )

    @field_validator("mounts")
    @classmethod
    def _targets_differ(cls, mounts: dict[str, str]) -> dict[str, str]:
        targets: dict[str, str] = {}
        for source, given in mounts.items():
            target = given.removesuffix(WRITABLE)
            if target in targets:
                raise ValueError(f"{targets[target]} and {source} are both mounted at {target}")
            targets[target] = source
        return mounts


class Inventory(_Model):
    """The whole file, with defaults merged into every host."""

    cluster: Name = Field(description="Name of the cluster; part of paths and container names.")
    image: ImageReference = Field(
        description="Container image with vLLM, such as vllm/vllm-openai:v0.33.0."
    )
    image_archive: Path | None = Field(
        default=None,
        description="The image as a docker-archive tar on the operator's machine (docker save), "
        "for hosts without access to a registry. Relative paths start at the inventory file.",
    )
    models: HostPath = Field(
        default="/data/models", description="Directory of models, the same on every host."
    )
    accelerator: AcceleratorName = Field(
        default=DEFAULT, description="cpu is for the lab and for experiments."
    )
    ssh: Ssh = Field(default=Ssh(), description="How to reach all hosts.")
    network: Network = Field(default=Network(), description="Settings for all hosts.")
    ray_ports: RayPorts = Field(default=RayPorts(), description="Ports of Ray, on all hosts.")
    packages: Packages = Field(default=Packages(), description="Where packages come from.")
    gateway: GatewayAccess = Field(
        default=GatewayAccess(), description="How clients reach services."
    )
    allow_unauthenticated_ray: bool = Field(
        default=False,
        description="Run an image whose Ray is older than 2.52 and has no token authentication. "
        "Anyone who reaches the Ray ports can then run code on every host.",
    )
    env: dict[EnvName, EnvValue] = Field(default={}, description="Environment of every container.")
    hosts: tuple[Host, ...] = Field(min_length=1, description="The machines, by name.")
    source: Path = Field(default=Path(), exclude=True, description="The file it was loaded from.")

    @property
    def file(self) -> str:
        """`source`, quoted for use in a shell command."""
        return shlex.quote(str(self.source))

    @property
    def head(self) -> Host:
        """The host with the role head; `load` ensures that there is exactly one."""
        return next(host for host in self.hosts if host.role == "head")

    @property
    def workers(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.role == "worker")

    @property
    def gateways(self) -> tuple[Host, ...]:
        """The hosts with a gateway, the head first."""
        named = self.gateway.hosts
        return (self.head, *(one for one in self.workers if {one.name, ALL_HOSTS} & {*named}))

    @property
    def keepers(self) -> tuple[Host, ...]:
        """The hosts that keep a copy of the head's documents: those with a gateway first, which
        are there for a head that is lost."""
        gateways = self.gateways[1:]
        return (*gateways, *(one for one in self.workers if one not in gateways))[:KEEPERS]

    def with_head(self, names: Collection[str]) -> tuple[Host, ...]:
        """Return the hosts with these names, and the head, which holds the cluster's lock."""
        return tuple(host for host in self.hosts if host.name in names or host.role == "head")

    def host(self, name: str) -> Host:
        """Return the host with that name. Raises KeyError."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)
