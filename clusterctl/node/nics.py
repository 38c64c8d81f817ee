"""The NICs of this node, and which of those used by the cluster are broken."""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from clusterctl.node.documents import BrokenNic

_SIOCGIFFLAGS = 0x8913
_UP = 0x1
_RUNNING = 0x40

_RTM_GETADDR = 22
_REQUEST_DUMP = 0x301
_DONE = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_LINK_SCOPE = 253  # From linux/rtnetlink.h and linux/if_addr.h


@dataclass(frozen=True)
class Interface:
    name: str
    addresses: Tuple[str, ...]
    running: bool  # Up, and with a carrier


def interfaces() -> List[Interface]:
    """Return the interfaces of this network namespace, with IPv4 and global IPv6 addresses."""
    held: Dict[int, List[str]] = {}  # By interface index
    for family in (socket.AF_INET, socket.AF_INET6):
        for index, address in _dumped(family):
            held.setdefault(index, []).append(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return [
            Interface(name, tuple(held.get(index, ())), _running(asked, name))
            for index, name in socket.if_nameindex()
        ]


def broken_nics(
    env: Mapping[str, str], node_ip: str, found: Sequence[Interface]
) -> List[BrokenNic]:
    """Return the NICs configured for Ray, Gloo and NCCL that currently cannot carry traffic. `env`:
    the node's environment; `found`: the NICs that it has."""
    # The loopback interface owns all of 127.0.0.0/8, but lists one address.
    loopback = "lo" if node_ip.startswith("127.") else ""
    holder = next((one.name for one in found if node_ip in one.addresses), loopback)
    wanted = {holder: ["control"]}
    for purpose, variable in (("gloo", "GLOO_SOCKET_IFNAME"), ("nccl", "NCCL_SOCKET_IFNAME")):
        # NCCL's list begins with = for exact names.
        for name in filter(None, env.get(variable, "").lstrip("=").split(",")):
            wanted.setdefault(name, []).append(purpose)

    known = {one.name: one for one in found}
    broken = []
    for name, purposes in wanted.items():
        problem = _problem(known.get(name), six=":" in node_ip)
        if problem:
            broken.append(BrokenNic(name, ", ".join(purposes), problem))
    return broken


def _problem(nic: Optional[Interface], *, six: bool) -> str:
    """Return `missing`, `down`, `no address` (of the wanted family), or ""."""
    if nic is None:
        return "missing"
    if not nic.running:
        return "down"
    return "" if any((":" in address) == six for address in nic.addresses) else "no address"


def _running(asked: socket.socket, name: str) -> bool:
    try:
        answer = fcntl.ioctl(asked, _SIOCGIFFLAGS, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return False
    (flags,) = struct.unpack("H", answer[16:18])
    return bool(flags & _UP and flags & _RUNNING)


def _dumped(family: int) -> Iterator[Tuple[int, str]]:
    """Yield (interface index, address) from a netlink dump, without link-local addresses. An ioctl
    would return one address only."""
    header = struct.pack("=LHHLL", 24, _RTM_GETADDR, _REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asked:
        asked.settimeout(5)
        asked.send(header + struct.pack("=BBBBL", family, 0, 0, 0, 0))
        while True:
            answer = asked.recv(2**17)
            while answer:
                length, kind = struct.unpack_from("=LH", answer)
                if kind == _DONE or length < 16:
                    return
                got, _, _, scope, index = struct.unpack_from("=BBBBL", answer, 16)
                attributes: Dict[int, bytes] = {}
                data = answer[24:length]
                while len(data) >= 4:
                    size, attribute = struct.unpack_from("=HH", data)
                    attributes[attribute] = data[4:size]
                    data = data[(size + 3) & ~3 :]
                held = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
                if got == family and held and (family == socket.AF_INET or scope < _LINK_SCOPE):
                    yield index, socket.inet_ntop(family, held)
                answer = answer[(length + 3) & ~3 :]
