"""Read from NCCL's log which transports it uses. Pure.

The lines are those of NCCL 2.2x with NCCL_DEBUG=INFO and the subsystems INIT, NET and GRAPH; those
from a machine with two H200s are in tests/unit/network/test_fabric_log.py. The format is
undocumented, so any of them may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_VIA_NET = re.compile(r" via NET/([^/\s]+)/\S*")
_VIA_HOST = re.compile(r" via (P2P|SHM)/")
_USING = re.compile(r"NET/(\w+) : Using (.*)$")
_DEVICE = re.compile(r"\[\d+\]([\w.@-]+)(?::(\d+)/|:)")
_PATHS = re.compile(r"GPU/(\S+) :(.*)$")
_GPU = re.compile(r"GPU/(\S+) \([^)]*/(\w+)\)")
_WARNING = re.compile(r"NCCL WARN (.*)$")
_PEER = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3})<(\d{1,5})>")
_GLOO_PEER = re.compile(r"remote=\[([0-9a-fA-F.:]+)\]:(\d{1,5})")

_NVLINK = {"NVL", "NVB"}  # Kinds of paths between GPUs; the others (PIX, PXB, PHB, SYS) cross PCIe


@dataclass(frozen=True)
class NcclTransports:
    """The transports that one rank's data uses."""

    between: str  # To other hosts: `Socket`, `IB`, or a plugin's name; "" without such traffic
    # NICs or RDMA devices that NCCL uses to other hosts, such as eth1 or mlx5_0
    devices: tuple[str, ...]
    gpudirect: bool  # NICs read the GPU's memory directly
    inside: str  # To GPUs of the same host: `NVLink`, `PCIe`, `shared memory`, or ""


def read_log(lines: Sequence[str]) -> NcclTransports:
    """Read the log lines of one rank."""
    networks = [match for line in lines if (match := _VIA_NET.search(line))]
    between = networks[0][1] if networks else ""
    # `Using [0]eth1:10.0.0.1<0>` or `Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ...`
    using = (match for line in lines if (match := _USING.search(line)))
    devices = next((match[2].split(";")[0] for match in using if match[1] == between), "")
    inside = ""
    ways = {match[1] for line in lines if (match := _VIA_HOST.search(line))}
    if "P2P" in ways:
        # The kinds of the paths from each GPU to the others
        paths = [match for line in lines if (match := _PATHS.search(line))]
        kinds = {kind for own in paths for other, kind in _GPU.findall(own[2]) if other != own[1]}
        inside = "NVLink" if kinds and kinds <= _NVLINK else "PCIe"
    elif ways:
        inside = "shared memory"
    return NcclTransports(
        between=between,
        devices=tuple(name for name, _ in _DEVICE.findall(devices)),
        gpudirect=any("/GDRDMA" in match[0] for match in networks),
        inside=inside,
    )


def warnings(lines: Sequence[str]) -> list[str]:
    """Return NCCL's warnings without their prefix and without duplicates."""
    found = [match[1].strip() for line in lines if (match := _WARNING.search(line))]
    return list(dict.fromkeys(found))


def peers(text: str) -> list[tuple[str, int]]:
    """Return the addresses and ports in an error of NCCL or Gloo."""
    found = [*_PEER.finditer(text), *_GLOO_PEER.finditer(text)]
    return [(match[1], int(match[2])) for match in found]
