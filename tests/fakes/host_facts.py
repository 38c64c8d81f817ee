"""Facts of an ordinary host, to change from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterctl.facts.model import (
    Address,
    EngineFacts,
    GpuFacts,
    GpuReport,
    HostFacts,
    NicFacts,
    Os,
    RdmaDevice,
)

ENGINE = EngineFacts(
    installed=True, running=True, version="29.0.1", data_root="/var/lib/docker",
    cdi_spec_dirs=("/etc/cdi", "/var/run/cdi"), runtimes=("runc",), rootless=False, error=None,
)  # fmt: skip


def nic(
    name: str, *ips: str, state: str = "up", kind: str = "physical", **changes: Any
) -> NicFacts:
    """An interface with global addresses, each `IP` or `IP/PREFIX`."""
    addresses = tuple(
        Address(ip, int(prefix or 24), "global")
        for ip, _, prefix in (text.partition("/") for text in ips)
    )
    base = NicFacts(name, "02:00:00:00:00:01", 1500, state, 10_000, kind, None, addresses)
    return replace(base, **changes)


def rdma(name: str, *, active: bool = True, nics: tuple[str, ...] = ()) -> RdmaDevice:
    return RdmaDevice(name, nics, "Ethernet", active, "100 Gb/sec (4X EDR)")


def gpus(count: int) -> GpuReport:
    return GpuReport(
        tuple(GpuFacts(i, f"GPU-{i}", "NVIDIA H200", 2**37, "580.1") for i in range(count)), None
    )


def host_facts(*nics: NicFacts, **changes: Any) -> HostFacts:
    loopback = NicFacts(
        "lo", "00:00:00:00:00:00", 65536, "unknown", None, "loopback", None,
        (Address("127.0.0.1", 8, "host"),),
    )  # fmt: skip
    base = HostFacts(
        hostname="a", hostname_addresses=("10.0.0.1",), machine_id="m", boot_id="b",
        os=Os("debian", (), "12", "bookworm", "Debian 12", "x86_64", "6.1"), cpus=8,
        memory=2**36, shm=2**35, disks=(), nics=(loopback, *nics), default_nic=None,
        gpus=GpuReport((), None), engine=ENGINE, cgroup_version=2,
        nofile_hard=1_048_576, clock=0.0, clock_offset=0.0, user="root", root=True,
        sudo_error=None, python3="/usr/bin/python3", listening_ports=(),
        rdma_nodes=("/dev/infiniband/uverbs0",),
    )  # fmt: skip
    return replace(base, **changes)
