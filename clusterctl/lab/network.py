"""Bridges, namespaces and cables, made and observed with `ip` and `tc`.

Nothing leaves the lab: hosts have a default route to the controller, as hosts do, and the
controller refuses to pass their packets on at once, so that nobody waits for time-outs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.lab.layout import CONTROL, FABRIC, LIGHT, PREFIX, LabHost, LabNetwork, Nic
from clusterctl.lab.local import run, succeeds
from clusterctl.lab.mounts import unmount_under

NAMESPACES = Path("/run/netns")
_NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default")
NETWORKS = (CONTROL, FABRIC, LIGHT)
_RATE = re.compile(r"([1-9][0-9]*)(kbit|mbit|gbit)")
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RULE_PREFERENCE = "7700"


@dataclass(frozen=True)
class CableEnd:
    """Where tc finds one end of a cable: its options for the namespace, and the device."""

    options: tuple[str, ...]
    device: str


def parse_rate(text: str) -> int:
    """Bits per second of a rate such as 200mbit; UsageError for anything else."""
    match = _RATE.fullmatch(text.lower())
    if match is None:
        raise UsageError(f"{text!r} is not a link rate", hint="write it as 200mbit or 1gbit")
    return int(match[1]) * _UNITS[match[2]]


def namespaces() -> frozenset[str]:
    """The lab's network namespaces on this machine."""
    names = (line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line)
    return frozenset(name for name in names if name.startswith(PREFIX))


def links() -> dict[str, bool]:
    """The lab's links in the controller's namespace: name to whether it is switched on."""
    found: list[dict[str, Any]] = json.loads(run(["ip", "-json", "link", "show"]))
    return {
        link["ifname"]: "UP" in link["flags"] for link in found if link["ifname"].startswith(PREFIX)
    }


def ensure_network(network: LabNetwork) -> bool:
    """The bridge with the controller's address and no way out; whether anything was missing."""
    missing = network.bridge not in links()
    if missing:
        run(["ip", "link", "add", network.bridge, "type", "bridge"])
    run(["ip", "address", "replace", str(network.interface(1)), "dev", network.bridge])
    run(["ip", "link", "set", network.bridge, "up"])
    if not _has_rule(network):
        run(["ip", "rule", "add", *_rule(network)])
        missing = True
    return missing


def ensure_host_network(host: LabHost) -> bool:
    """The host's namespace with all its cables plugged; whether anything was missing."""
    missing = host.namespace not in namespaces()
    if missing:
        run(["ip", "netns", "add", host.namespace])
    run(["ip", "-n", host.namespace, "link", "set", "lo", "up"])
    for nic in host.nics:
        missing |= _ensure_cable(host.namespace, nic)
    gateway = str(host.nics[0].network.controller)
    run(["ip", "-n", host.namespace, "route", "replace", "default", "via", gateway])
    return missing


def ensure_neighbours(hosts: int) -> None:
    """Room for `hosts` that all talk to each other in the kernel's table of neighbours, which all
    namespaces share; its limit of 1024 is meant for one host. Raised, never lowered; in a
    namespace of its own the machine has no say in it."""
    for name in ("gc_thresh3", "gc_thresh2", "gc_thresh1"):
        limit = _NEIGHBOURS / name
        if limit.exists() and int(limit.read_text()) < 2 * hosts**2:
            limit.write_text(str(2 * hosts**2))


def set_cable(nic: Nic, *, plugged: bool) -> None:
    """Plug a cable in or pull it, at the bridge's end: the host sees its carrier go."""
    run(["ip", "link", "set", nic.peer, "up" if plugged else "down"])


def ensure_rate(host: LabHost, rate: int | None) -> bool:
    """Limit all cables of a host to `rate` bits/s both ways, or lift the limit; whether
    anything changed."""
    changed = [_ensure_end_rate(end, rate) for nic in host.nics for end in _ends(host, nic)]
    return any(changed)


def link_rate(host: LabHost) -> int | None:
    """The limit of a host's first cable, towards the host."""
    near = CableEnd((), host.nics[0].peer)
    return _end_rate(near) if near.device in links() else None


def remove_hosts(hosts: Iterable[str]) -> bool:
    """Delete namespaces, and with them the cables; whether there were any."""
    gone = sorted(set(hosts) & namespaces())
    for name in gone:
        run(["ip", "netns", "delete", name])
    return bool(gone)


def remove_namespace_mount() -> None:
    """Undo the mount on which iproute2 keeps namespaces, when none is left of anybody's."""
    if NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        unmount_under(NAMESPACES)
        NAMESPACES.rmdir()


def remove_network(network: LabNetwork) -> bool:
    """Delete a bridge and its rule; whether there was anything."""
    there = network.bridge in links()
    if there:
        run(["ip", "link", "delete", network.bridge])
    while _has_rule(network):
        there = True
        run(["ip", "rule", "delete", *_rule(network)])
    return there


def remove_stray_links() -> bool:
    """Delete links of the lab that outlived their namespaces; whether there were any."""
    bridges = {network.bridge for network in NETWORKS}
    strays = [name for name in links() if name not in bridges]
    for name in strays:
        # The other end of a pair goes with the first: an absent link is no failure here.
        succeeds(["ip", "link", "delete", name])
    return bool(strays)


def _ensure_cable(namespace: str, nic: Nic) -> bool:
    plugged = links().get(nic.peer)
    if plugged is None:
        # A cable whose near end is gone went with its namespace; make it whole.
        argv = ["ip", "link", "add", nic.peer, "type", "veth"]
        run([*argv, "peer", "name", nic.name, "netns", namespace])
    run(["ip", "-n", namespace, "address", "replace", str(nic.address), "dev", nic.name])
    run(["ip", "-n", namespace, "link", "set", nic.name, "up"])
    run(["ip", "link", "set", nic.peer, "master", nic.network.bridge, "up"])
    return not plugged


def _rule(network: LabNetwork) -> list[str]:
    return ["preference", _RULE_PREFERENCE, "iif", network.bridge, "unreachable"]


def _has_rule(network: LabNetwork) -> bool:
    return f"iif {network.bridge} " in run(["ip", "rule", "show"])


def _ends(host: LabHost, nic: Nic) -> tuple[CableEnd, CableEnd]:
    return CableEnd((), nic.peer), CableEnd(("-n", host.namespace), nic.name)


def _ensure_end_rate(end: CableEnd, rate: int | None) -> bool:
    if _end_rate(end) == rate:
        return False
    if rate is None:
        run(["tc", *end.options, "qdisc", "delete", "dev", end.device, "root"])
    else:
        tbf = ["tbf", "rate", f"{rate}bit", "burst", str(_burst(rate)), "latency", "50ms"]
        run(["tc", *end.options, "qdisc", "replace", "dev", end.device, "root", *tbf])
    return True


def _burst(rate: int) -> int:
    """Bytes that may pass at once: 10 ms of the rate, but never less than one 64 KiB
    segment, which TBF would drop again and again."""
    return max(64 * 1024 + 1024, rate // 8 // 100)


def _end_rate(end: CableEnd) -> int | None:
    shown: list[dict[str, Any]] = json.loads(
        run(["tc", *end.options, "-json", "qdisc", "show", "dev", end.device])
    )
    for qdisc in shown:
        if qdisc["kind"] == "tbf" and qdisc.get("root"):
            return int(qdisc["options"]["rate"]) * 8
    return None
