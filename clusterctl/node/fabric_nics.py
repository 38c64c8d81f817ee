"""Which interfaces the environment selects on this node, and whether they are usable.

The syntax is that of the libraries. Gloo takes a comma-separated list of exact names. NCCL takes
prefixes; a leading `=` makes all names exact, a leading `^` excludes them (src/os/linux.cc of
NCCL). With `^` or without the variable NCCL chooses by itself, and no interface is checked.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

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


@dataclass(frozen=True)
class FabricAddress:
    """An address that other nodes must reach, and what for."""

    purpose: str  # `control`, `gloo`, `nccl`, or several joined: `gloo, nccl`
    nic: str
    ip: str
    problem: str = ""  # missing | down | no address


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


def places(env: Mapping[str, str], node_ip: str, found: Sequence[Interface]) -> List[FabricAddress]:
    """Return every address that others must reach, one entry per address with all its purposes."""
    # The loopback interface owns all of 127.0.0.0/8, but lists one address.
    loopback = "lo" if node_ip.startswith("127.") else ""
    holder = next((one.name for one in found if node_ip in one.addresses), loopback)
    wanted = [("control", holder, node_ip)]
    gloo = env.get("GLOO_SOCKET_IFNAME", "").split(",")
    wanted += [("gloo", name, "") for name in gloo if name]
    wanted += [("nccl", name, "") for name in _nccl(env, [one.name for one in found])]
    known = {one.name: one for one in found}
    joined: Dict[Tuple[str, str, str], List[str]] = {}
    for purpose, name, ip in wanted:
        interface = known.get(name)
        if interface is None:
            address, problem = ip, "missing"
        else:
            same_family = [a for a in interface.addresses if (":" in a) == (":" in node_ip)]
            address = ip or next(iter(same_family), "")
            problem = "down" if not interface.running else "" if address else "no address"
        joined.setdefault((name, address, problem), []).append(purpose)
    return [
        FabricAddress(", ".join(dict.fromkeys(purposes)), name, ip, problem)
        for (name, ip, problem), purposes in joined.items()
    ]


def _nccl(env: Mapping[str, str], names: Sequence[str]) -> List[str]:
    """Return the interfaces selected by NCCL_SOCKET_IFNAME. A word that matches none is kept, so
    that it is reported as missing."""
    text = env.get("NCCL_SOCKET_IFNAME", "")
    if not text or text.startswith("^"):
        return []
    exact = text.startswith("=")
    chosen: List[str] = []
    for word in text.lstrip("=").split(","):
        fitting = [name for name in names if name == word or (not exact and name.startswith(word))]
        chosen += fitting or [word]
    return chosen


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
