"""Which interfaces the environment chooses on this node, and whether they can be used.

The grammar is the libraries' own. Gloo: exact names, a comma list. NCCL: a leading `^` excludes,
a leading `=` makes all names exact, else they are prefixes (src/os/linux.cc of NCCL); without
the variable NCCL chooses by itself, and nothing is said here.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from clusterctl.node.fabric_documents import Place

# Prefixes of the variables that choose interfaces and transports; none of them is a secret.
TELLING = ("NCCL_", "GLOO_")

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
    """Those of this network namespace, with their IPv4 and global IPv6 addresses."""
    held = _addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return [
            Interface(name, tuple(held.get(index, ())), _running(asked, name))
            for index, name in socket.if_nameindex()
        ]


def telling(env: Mapping[str, str]) -> Dict[str, str]:
    """The part of an environment that decides what this gate proves."""
    names = [name for name in env if name.startswith(TELLING) or name == "VLLM_HOST_IP"]
    return {name: env[name] for name in sorted(names)}


def places(env: Mapping[str, str], node_ip: str, found: Sequence[Interface]) -> List[Place]:
    """Every address that others must reach; those of one interface and address together."""
    wanted = [("control", _holder(node_ip, found), node_ip)]
    wanted += [("gloo", name, "") for name in _gloo(env)]
    wanted += [("nccl", name, "") for name in _nccl(env, [one.name for one in found])]
    known = {one.name: one for one in found}
    joined: Dict[Tuple[str, str, str], List[str]] = {}
    for purpose, name, ip in wanted:
        place = _place(known.get(name), ip, ":" in node_ip)
        joined.setdefault((name, *place), []).append(purpose)
    return [
        Place(", ".join(dict.fromkeys(purposes)), name, ip, problem)
        for (name, ip, problem), purposes in joined.items()
    ]


def _holder(ip: str, found: Sequence[Interface]) -> str:
    """The loopback has all of 127.0.0.0/8, and tells one address."""
    loopback = "lo" if ip.startswith("127.") else ""
    return next((one.name for one in found if ip in one.addresses), loopback)


def _place(interface: Interface | None, ip: str, ipv6: bool) -> Tuple[str, str]:
    """Address and problem."""
    if interface is None:
        return ip, "missing"
    ip = ip or next((a for a in interface.addresses if (":" in a) == ipv6), "")
    if not interface.running:
        return ip, "down"
    return ip, "" if ip else "no address"


def _gloo(env: Mapping[str, str]) -> List[str]:
    return [name for name in env.get("GLOO_SOCKET_IFNAME", "").split(",") if name]


def _nccl(env: Mapping[str, str], names: Sequence[str]) -> List[str]:
    """The interfaces that NCCL would take; a name that fits none stays, to be told of."""
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


def _addresses() -> Dict[int, List[str]]:
    """By interface index: all addresses that others could reach, IPv4 first."""
    found: Dict[int, List[str]] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for index, address in _dumped(family):
            found.setdefault(index, []).append(address)
    return found


def _dumped(family: int) -> Iterator[Tuple[int, str]]:
    """What the kernel lists of a family; the ioctl would tell the first address alone."""
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
                yield from _address(answer[16:length], family)
                answer = answer[(length + 3) & ~3 :]


def _address(message: bytes, family: int) -> Iterator[Tuple[int, str]]:
    """Index and address of one message, unless it is of the link's own scope."""
    got, _, _, scope, index = struct.unpack_from("=BBBBL", message)
    attributes = dict(_attributes(message[8:]))
    data = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    if got == family and data and (family == socket.AF_INET or scope < _LINK_SCOPE):
        yield index, socket.inet_ntop(family, data)


def _attributes(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[(length + 3) & ~3 :]
