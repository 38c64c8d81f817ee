"""Parse RDMA devices from the content of /sys/class/infiniband.

Formats: Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterctl.facts.model import Gid, RdmaDevice, RdmaPort
from clusterctl.facts.system import Files, first_line

_CLASS = "/sys/class/infiniband/"
_RATE = re.compile(r"([\d.]+) Gb/sec")


def parse_rdma(files: Files, paths: Sequence[str]) -> tuple[RdmaDevice, ...]:
    """Return every device. Raises ValueError for a malformed rate or number."""
    names = [path.removeprefix(_CLASS) for path in paths if path.startswith(_CLASS)]
    return tuple(_device(name, files, paths) for name in names if "/" not in name)


def _device(name: str, files: Files, paths: Sequence[str]) -> RdmaDevice:
    directory = f"{_CLASS}{name}"
    nics = f"{directory}/device/net/"
    ports = tuple(_port(f"{directory}/ports/{n}", n, files) for n in _numbers(directory, files))
    shown = ports[0] if ports else None
    return RdmaDevice(
        name=name,
        nics=tuple(path.removeprefix(nics) for path in paths if path.startswith(nics)),
        link_layer=shown.link_layer if shown else "",
        active=any(port.active for port in ports),
        rate=first_line(files, f"{directory}/ports/{shown.number}/rate") if shown else "",
        ports=ports,
    )


def _numbers(directory: str, files: Files) -> list[int]:
    found = (re.match(rf"{re.escape(directory)}/ports/(\d+)/state$", path) for path in files)
    return sorted(int(match[1]) for match in found if match)


def _port(directory: str, number: int, files: Files) -> RdmaPort:
    rate = _RATE.match(first_line(files, f"{directory}/rate"))
    return RdmaPort(
        number=number,
        active="ACTIVE" in first_line(files, f"{directory}/state"),
        link_layer=first_line(files, f"{directory}/link_layer"),
        rate=float(rate[1]) * 1000 if rate else None,
        gids=tuple(_gids(directory, files)),
    )


def _gids(directory: str, files: Files) -> list[Gid]:
    """Return the entries in the order of the table, without unused ones, which the probe leaves
    out."""
    prefix = f"{directory}/gids/"
    indices = sorted(int(path.removeprefix(prefix)) for path in files if path.startswith(prefix))
    return [
        Gid(
            index,
            first_line(files, f"{prefix}{index}"),
            first_line(files, f"{directory}/gid_attrs/types/{index}"),
            first_line(files, f"{directory}/gid_attrs/ndevs/{index}"),
        )
        for index in indices
    ]
