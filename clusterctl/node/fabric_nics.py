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
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from clusterctl.node.fabric_documents import Place

TELLING = ("NCCL_", "GLOO_")
"""Prefixes of the variables that choose interfaces and transports; none of them is a secret."""

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_UP = 0x1
_RUNNING = 0x40
_IF_INET6 = Path("/proc/net/if_inet6")
_GLOBAL = "00"
"""The scope column of if_inet6."""


@dataclass(frozen=True)
class Interface:
    name: str
    addresses: Tuple[str, ...]
    running: bool
    """Up, and with a carrier."""


def interfaces() -> List[Interface]:
    """Those of this network namespace, with their IPv4 and global IPv6 addresses."""
    ipv6 = _ipv6()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return [
            Interface(name, (*_ipv4(asked, name), *ipv6.get(name, ())), _running(asked, name))
            for _, name in socket.if_nameindex()
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
    return next((one.name for one in found if ip in one.addresses), "")


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


def _ipv4(asked: socket.socket, name: str) -> Tuple[str, ...]:
    try:
        answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return ()
    return (socket.inet_ntoa(answer[20:24]),)


def _running(asked: socket.socket, name: str) -> bool:
    try:
        answer = fcntl.ioctl(asked, _SIOCGIFFLAGS, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return False
    (flags,) = struct.unpack("H", answer[16:18])
    return bool(flags & _UP and flags & _RUNNING)


def _ipv6() -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    if not _IF_INET6.exists():
        return found
    for line in _IF_INET6.read_text().splitlines():
        digits, _, _, scope, _, name = line.split()
        if scope == _GLOBAL:
            ip = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
            found.setdefault(name, []).append(ip)
    return found
