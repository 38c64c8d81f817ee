"""Bridges, namespaces and cables, made and observed with `ip` and `tc`.

The bridges are in a namespace of their own: what the machine says of forwarding and bridged
packets (its sysctls, its firewall, a Docker engine that drops what it does not know) does not
reach packets between hosts. The controller is plugged into each bridge as hosts are.

Nothing leaves the lab. Hosts have a default route to the controller, as hosts do, but rules of
theirs refuse what goes beyond their own networks before it is sent, so that nobody waits. The
controller would be no good at that: the kernel answers one such packet a second, and none at all
where the machine does not forward. It refuses to pass packets on all the same, as root of a host
may change the rules there.
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
from clusterctl.lab.local import run, succeeds, unmount_under

NAMESPACES = Path("/run/netns")
_NEIGHBOURS = Path("/proc/sys/net/ipv4/neigh/default")
NETWORKS = (CONTROL, FABRIC, LIGHT)
_RATE = re.compile(r"([1-9][0-9]*)(kbit|mbit|gbit)")
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# The namespace that has the bridges and the near ends of all cables.
SWITCH = f"{PREFIX}switch"
_RULE_PREFERENCE = "7700"
# All routes but the default one; nothing else.
_HOST_RULES = (
    ("preference", "7700", "lookup", "main", "suppress_prefixlength", "0"),
    ("preference", "7701", "unreachable"),
)


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
    return _links()


def cables() -> dict[str, bool]:
    """Bridges and near ends of cables: name to whether it is switched on."""
    return _links("-n", SWITCH) if SWITCH in namespaces() else {}


def _links(*options: str) -> dict[str, bool]:
    found: list[dict[str, Any]] = json.loads(run(["ip", *options, "-json", "link", "show"]))
    return {
        link["ifname"]: "UP" in link["flags"] for link in found if link["ifname"].startswith(PREFIX)
    }


def ensure_switch() -> bool:
    """The namespace of the bridges; whether it was missing. Links of the lab without it are of an
    older version, or go with it."""
    if SWITCH in namespaces():
        return False
    for name in links():
        succeeds(["ip", "link", "delete", name])  # the other end of a pair goes with the first
    run(["ip", "netns", "add", SWITCH])
    return True


def ensure_network(network: LabNetwork) -> bool:
    """The bridge, the controller plugged into it, and no way out; whether anything was missing."""
    bridge = ["-n", SWITCH, "link"]
    ensure_switch()
    missing = network.bridge not in cables()
    if missing:
        run(["ip", *bridge, "add", network.bridge, "type", "bridge"])
    run(["ip", *bridge, "set", network.bridge, "up"])
    if network.bridge not in links():
        missing = True
        pair = ["type", "veth", "peer", "name", network.port, "netns", SWITCH]
        run(["ip", "link", "add", network.bridge, *pair])
    run(["ip", *bridge, "set", network.port, "master", network.bridge, "up"])
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
    there = run(["ip", "-n", host.namespace, "rule", "show"])
    for rule in _HOST_RULES:
        if f"{rule[1]}:" not in there:
            run(["ip", "-n", host.namespace, "rule", "add", *rule])
            missing = True
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
    run(["ip", "-n", SWITCH, "link", "set", nic.peer, "up" if plugged else "down"])


def ensure_rate(host: LabHost, rate: int | None) -> bool:
    """Limit all cables of a host to `rate` bits/s in both directions, or remove the limit. Return
    whether anything changed."""
    changed = False
    for nic in host.nics:
        for end in (
            CableEnd(("-n", SWITCH), nic.peer),
            CableEnd(("-n", host.namespace), nic.name),
        ):
            if _end_rate(end) == rate:
                continue
            changed = True
            if rate is None:
                run(["tc", *end.options, "qdisc", "delete", "dev", end.device, "root"])
                continue
            # Bytes that may pass at once: 10 ms of the rate, but never less than one 64 KiB
            # segment, which TBF would drop again and again.
            burst = max(64 * 1024 + 1024, rate // 8 // 100)
            tbf = ["tbf", "rate", f"{rate}bit", "burst", str(burst), "latency", "50ms"]
            run(["tc", *end.options, "qdisc", "replace", "dev", end.device, "root", *tbf])
    return changed


def link_rate(host: LabHost) -> int | None:
    """The limit of a host's first cable, towards the host."""
    near = CableEnd(("-n", SWITCH), host.nics[0].peer)
    return _end_rate(near) if near.device in cables() else None


def remove_namespaces(names: Iterable[str]) -> bool:
    """Delete namespaces, and with them the cables; whether there were any."""
    gone = sorted(set(names) & namespaces())
    for name in gone:
        run(["ip", "netns", "delete", name])
    return bool(gone)


def remove_namespace_mount() -> None:
    """Undo the mount on which iproute2 keeps namespaces, when none is left of anybody's."""
    if NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        unmount_under(NAMESPACES)
        if not any(NAMESPACES.iterdir()):  # what was there before the mount is somebody else's
            NAMESPACES.rmdir()


def remove_network(network: LabNetwork) -> bool:
    """Unplug the controller and delete the rule; whether there was anything. The bridge goes with
    the switch."""
    there = network.bridge in links()
    if there:
        run(["ip", "link", "delete", network.bridge])
    while _has_rule(network):
        there = True
        run(["ip", "rule", "delete", *_rule(network)])
    return there


def _ensure_cable(namespace: str, nic: Nic) -> bool:
    plugged = cables().get(nic.peer)
    if plugged is None:
        # A cable whose near end is gone went with its namespace; make it whole.
        argv = ["ip", "-n", SWITCH, "link", "add", nic.peer, "type", "veth"]
        run([*argv, "peer", "name", nic.name, "netns", namespace])
    run(["ip", "-n", namespace, "address", "replace", str(nic.address), "dev", nic.name])
    run(["ip", "-n", namespace, "link", "set", nic.name, "up"])
    run(["ip", "-n", SWITCH, "link", "set", nic.peer, "master", nic.network.bridge, "up"])
    return not plugged


def _rule(network: LabNetwork) -> list[str]:
    return ["preference", _RULE_PREFERENCE, "iif", network.bridge, "unreachable"]


def _has_rule(network: LabNetwork) -> bool:
    return f"iif {network.bridge} " in run(["ip", "rule", "show"])


def _end_rate(end: CableEnd) -> int | None:
    shown: list[dict[str, Any]] = json.loads(
        run(["tc", *end.options, "-json", "qdisc", "show", "dev", end.device])
    )
    for qdisc in shown:
        if qdisc["kind"] == "tbf" and qdisc.get("root"):
            return int(qdisc["options"]["rate"]) * 8
    return None
