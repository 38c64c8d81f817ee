"""Bridges, namespaces and cables, created and inspected with `ip` and `tc`.

The bridges are in a separate namespace, so that the machine's settings for forwarded and bridged
packets (sysctls, firewall, a Docker engine that drops unknown traffic) do not affect packets
between hosts. The controller is connected to each bridge in the same way as hosts.

Nothing leaves the lab. Hosts have a default route to the controller, as real ones do, but their own
rules reject packets to other networks before they are sent, so that connections fail at once. The
controller could not do that: the kernel answers one such packet a second, and none at all where the
machine does not forward. It still refuses to forward, as root of a host may change the rules there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
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
# The namespace of the bridges and the bridge-side ends of all cables.
SWITCH = f"{PREFIX}switch"
_RULE_PREFERENCE = "7700"
# Packets of a host may take all routes but the default one; others are rejected.
_HOST_RULES = (
    ("preference", "7700", "lookup", "main", "suppress_prefixlength", "0"),
    ("preference", "7701", "unreachable"),
)


def parse_rate(text: str) -> int:
    """Return bits per second of a rate such as 200mbit. Raises UsageError for anything else."""
    match = _RATE.fullmatch(text.lower())
    if match is None:
        raise UsageError(f"{text!r} is not a link rate", hint="write it as 200mbit or 1gbit")
    return int(match[1]) * _UNITS[match[2]]


def namespaces() -> frozenset[str]:
    """Return the lab's network namespaces on this machine."""
    names = (line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line)
    return frozenset(name for name in names if name.startswith(PREFIX))


def cables() -> dict[str, bool]:
    """Return bridges and bridge-side ends of cables: name to whether it is up."""
    return links("-n", SWITCH) if SWITCH in namespaces() else {}


def links(*options: str) -> dict[str, bool]:
    """Return the lab's links in the controller's namespace, or in the one that `options` of `ip`
    select: name to whether it is up."""
    found: list[dict[str, Any]] = json.loads(run(["ip", *options, "-json", "link", "show"]))
    return {
        link["ifname"]: "UP" in link["flags"] for link in found if link["ifname"].startswith(PREFIX)
    }


def ensure_switch() -> bool:
    """Create the namespace of the bridges if it is missing. Return whether it was. Without it,
    existing links of the lab are from an older version and are deleted."""
    if SWITCH in namespaces():
        return False
    for name in links():
        succeeds(["ip", "link", "delete", name])  # this also deletes the link's peer
    run(["ip", "netns", "add", SWITCH])
    return True


def ensure_network(network: LabNetwork) -> bool:
    """Create the bridge, connect the controller, block forwarding. Return whether anything
    changed."""
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
    """Create the host's namespace and plug all its cables. Return whether anything was missing."""
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
    """Raise the limits of the kernel's neighbour table, which all namespaces share, for `hosts`
    that all talk to each other (the default of 1024 is for one host). Never lowers them; does
    nothing in a network namespace without these settings."""
    for name in ("gc_thresh3", "gc_thresh2", "gc_thresh1"):
        limit = _NEIGHBOURS / name
        if limit.exists() and int(limit.read_text()) < 2 * hosts**2:
            limit.write_text(str(2 * hosts**2))


def set_cable(nic: Nic, *, plugged: bool) -> None:
    """Plug or pull a cable at the bridge's end: the host sees its carrier change."""
    run(["ip", "-n", SWITCH, "link", "set", nic.peer, "up" if plugged else "down"])


def ensure_rate(host: LabHost, rate: int | None) -> bool:
    """Limit all cables of a host to `rate` bits/s in both directions, or remove the limit. Return
    whether anything changed."""
    changed = False
    for nic in host.nics:
        for namespace, device in ((SWITCH, nic.peer), (host.namespace, nic.name)):
            if _end_rate(namespace, device) == rate:
                continue
            changed = True
            if rate is None:
                run(["tc", "-n", namespace, "qdisc", "delete", "dev", device, "root"])
                continue
            # Bytes that may pass at once: 10 ms of the rate, but never less than one 64 KiB
            # segment, which TBF would drop again and again.
            burst = max(64 * 1024 + 1024, rate // 8 // 100)
            tbf = ["tbf", "rate", f"{rate}bit", "burst", str(burst), "latency", "50ms"]
            run(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *tbf])
    return changed


def link_rate(host: LabHost) -> int | None:
    """Limit of a host's first cable in bits/s, towards the host; None without a limit."""
    device = host.nics[0].peer
    return _end_rate(SWITCH, device) if device in cables() else None


def remove_namespaces(names: Iterable[str]) -> bool:
    """Delete namespaces, and with them the cables. Return whether there were any."""
    gone = sorted(set(names) & namespaces())
    for name in gone:
        run(["ip", "netns", "delete", name])
    return bool(gone)


def remove_namespace_mount() -> None:
    """Unmount iproute2's directory of namespaces once no program has a namespace in it."""
    if NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        unmount_under(NAMESPACES)
        if not any(NAMESPACES.iterdir()):  # files below the mount are not the lab's
            NAMESPACES.rmdir()


def remove_network(network: LabNetwork) -> bool:
    """Disconnect the controller and delete the rule. Return whether there was anything. The bridge
    is deleted with the switch's namespace."""
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
        # The kernel deleted both ends of the cable with its namespace: create it again.
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


def _end_rate(namespace: str, device: str) -> int | None:
    argv = ["tc", "-n", namespace, "-json", "qdisc", "show", "dev", device]
    shown: list[dict[str, Any]] = json.loads(run(argv))
    for qdisc in shown:
        if qdisc["kind"] == "tbf" and qdisc.get("root"):
            return int(qdisc["options"]["rate"]) * 8
    return None
