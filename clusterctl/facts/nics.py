"""Parse network interfaces, RDMA devices, routes and ports from a probe's output.

Formats: ip(8), and Documentation/ABI/stable/sysfs-class-infiniband in the Linux kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Any

from clusterctl.facts.claims import plain_ip
from clusterctl.facts.model import Address, Gid, HostRoute, NicFacts, RdmaDevice, RdmaPort
from clusterctl.facts.sections import Files, Section, first_line
from clusterctl.inventory.values import NIC

_LOOPBACK_TYPE = "772"  # ARPHRD_LOOPBACK

_ADDRESS = re.compile(r"^\d+: ([^\s@]+)\S*\s+inet6? ([0-9a-fA-F.:]+)/(\d+).*?\bscope (\w+)")
_INET6_SCOPES = {"00": "global", "10": "host", "20": "link", "40": "site", "80": "global"}
# RTF_REJECT: an unreachable route, such as the kernel's own last default route on lo
_ROUTE_REJECT = 0x0200


def parse_nics(files: Files, said: Section | None, paths: Sequence[str]) -> tuple[NicFacts, ...]:
    """Return all NICs: names and addresses from `ip`, or from /proc if the host has no `ip`; the
    rest from /sys/class/net."""
    text = said.body.strip() if said else ""
    links: dict[str, dict[str, Any]] = {}
    found: dict[str, list[Address]] = {}
    if text.startswith("["):
        links = {link["ifname"]: link for link in json.loads(text) if "ifname" in link}
        for name, link in links.items():
            found[name] = [
                _address(entry["local"], int(entry["prefixlen"]), entry.get("scope", "global"))
                for entry in link.get("addr_info", ())
                if entry.get("family") in ("inet", "inet6") and "local" in entry
            ]
    else:
        # The first two lines of /proc/net/dev are headings, which contain a `|`.
        devices = (line for line in files.get("/proc/net/dev", ()) if "|" not in line)
        found = {line.partition(":")[0].strip(): [] for line in devices if ":" in line}
        # `ip -o addr` of a busybox, which cannot print JSON
        matches = (_ADDRESS.match(line) for line in text.splitlines())
        addresses = [(m[1], _address(m[2], int(m[3]), m[4])) for m in matches if m]
        for name, address in addresses if text else _proc_addresses(files):
            found.setdefault(name, []).append(address)
    if strange := next((name for name in found if not re.fullmatch(NIC, name)), None):
        raise ValueError(f"{strange!r:.40} is not an interface name")
    return tuple(_nic(name, links.get(name, {}), found[name], files, paths) for name in found)


def _nic(
    name: str, link: dict[str, Any], addresses: list[Address], files: Files, paths: Sequence[str]
) -> NicFacts:
    directory = f"/sys/class/net/{name}"
    state = link.get("operstate") or first_line(files, f"{directory}/operstate") or "unknown"
    # Drivers without a speed report -1, or 2**32 - 1 when the link is down.
    speed = _natural(first_line(files, f"{directory}/speed")) or 0
    kind = "physical" if f"{directory}/device" in paths else _made_kind(link)
    for special in ("bond", "bridge", "vlan", "wlan"):
        if f"DEVTYPE={special}" in files.get(f"{directory}/uevent", ()):
            kind = special
    if name == "lo" or first_line(files, f"{directory}/type") == _LOOPBACK_TYPE:
        kind = "loopback"
    return NicFacts(
        name=name,
        mac=link.get("address") or first_line(files, f"{directory}/address"),
        mtu=int(link.get("mtu") or first_line(files, f"{directory}/mtu") or 0),
        state=str(state).lower(),
        speed=speed if 0 < speed < 2**32 - 1 else None,
        kind=kind,
        numa_node=_natural(first_line(files, f"{directory}/device/numa_node")),
        addresses=tuple(addresses),
        lower=_below(paths, f"{directory}/lower_"),
        upper=_below(paths, f"{directory}/upper_"),
    )


def _made_kind(link: dict[str, Any]) -> str:
    """Return the kind of an interface without hardware, as `ip -d` names it: `team`, `dummy`."""
    info = link.get("linkinfo") or {}
    return str(info.get("info_kind") or "virtual")


def _below(paths: Iterable[str], prefix: str) -> tuple[str, ...]:
    return tuple(path.removeprefix(prefix) for path in paths if path.startswith(prefix))


def _natural(word: str) -> int | None:
    return int(word) if re.fullmatch(r"\d+", word) else None


def _address(ip: str, prefix: int, scope: str) -> Address:
    """Build an Address in canonical spelling. Raises ValueError if `ip` is malformed."""
    if not 0 <= prefix <= 128:
        raise ValueError(f"/{prefix} is not a prefix length")
    return Address(plain_ip(ip), prefix, scope)


def _proc_addresses(files: Files) -> list[tuple[str, Address]]:
    """Parse the host's addresses from /proc, for a host without the `ip` command."""
    # fib_trie: a leaf `|-- IP` and below it `/32 host LOCAL`
    local: dict[IPv4Address, None] = {}
    leaf = None
    for line in files.get("/proc/net/fib_trie", ()):
        if match := re.search(r"\|-- (\S+)", line):
            leaf = IPv4Address(match[1])
        elif leaf is not None and "/32 host LOCAL" in line:
            local[leaf] = None
    routes = parse_routes(files)
    found: list[tuple[str, Address]] = []
    for ip in local:
        for route in routes:
            if route.direct and route.network.prefixlen and ip in route.network:
                found.append((route.nic, Address(str(ip), route.network.prefixlen, "global")))
                break
        else:
            if ip.is_loopback:
                found.append(("lo", Address(str(ip), 8, "host")))
    # if_inet6: address, index, prefix length, scope, flags, name
    for line in files.get("/proc/net/if_inet6", ()):
        digits, _, prefix, scope, _, name = line.split()
        address = str(IPv6Address(int(digits, 16)))
        found.append((name, Address(address, int(prefix, 16), _INET6_SCOPES.get(scope, "global"))))
    return found


def parse_routes(files: Files) -> tuple[HostRoute, ...]:
    """Parse /proc/net/route, whose addresses are little-endian hex."""
    found = []
    for line in files.get("/proc/net/route", ()):
        fields = line.split()
        if len(fields) < 8 or fields[0] == "Iface" or int(fields[3], 16) & _ROUTE_REJECT:
            continue
        network = IPv4Network((_ipv4(fields[1]), str(_ipv4(fields[7]))), strict=False)
        found.append(HostRoute(fields[0], network, int(fields[6]), int(fields[2], 16) == 0))
    return tuple(found)


def _ipv4(digits: str) -> IPv4Address:
    return IPv4Address(bytes.fromhex(digits)[::-1])


def parse_default_nic(files: Files) -> str | None:
    """Return the NIC of the IPv4 default route with the lowest metric, else of the IPv6 one."""
    routes = parse_routes(files)
    defaults = [(route.metric, route.nic) for route in routes if route.network.prefixlen == 0]
    if not defaults:
        # ipv6_route: ..., [5] metric, [8] flags, [9] NIC; the probe sends defaults only
        lines = (line.split() for line in files.get("/proc/net/ipv6_route", ()))
        defaults = [
            (int(fields[5], 16), fields[9])
            for fields in lines
            if len(fields) == 10 and not int(fields[8], 16) & _ROUTE_REJECT
        ]
    return min(defaults, default=(0, None))[1]


def parse_firewall(files: Files, paths: Sequence[str]) -> str:
    """Return what filters incoming connections, by units that run or start with the host."""
    units = {path.rpartition("/")[2] for path in paths if path.endswith(".service")}
    if "firewalld.service" in units:
        return "firewalld"
    if "ENABLED=yes" in files.get("/etc/ufw/ufw.conf", ()):
        return "ufw"
    if units & {"iptables.service", "netfilter-persistent.service"}:
        return "iptables"
    return "nftables" if "nftables.service" in units else ""


def parse_listening(files: Files) -> tuple[int, ...]:
    """Return the ports of listening sockets: second field `ADDRESS:PORT` in hex."""
    lines = (*files.get("/proc/net/tcp", ()), *files.get("/proc/net/tcp6", ()))
    return tuple(sorted({int(line.split()[1].rpartition(":")[2], 16) for line in lines}))


def parse_names(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses printed by `getent ahosts`, without duplicates."""
    found: dict[str, None] = {}
    for line in lines:
        ip = line.split()[0]
        ip_address(ip.partition("%")[0])
        found[ip] = None
    return tuple(found)


def parse_ssh_ip(connection: str) -> str:
    """Parse SSH_CONNECTION: client, its port, this host, its port. Raises ValueError."""
    words = connection.split()
    return str(ip_address(words[2])) if len(words) == 4 else ""


def parse_gpu_numa_nodes(files: Files) -> tuple[int, ...]:
    """NUMA nodes of the devices bound to NVIDIA's driver, without -1, which means a single node."""
    prefix, suffix = "/sys/bus/pci/drivers/nvidia/", "/numa_node"
    words = (
        first_line(files, path)
        for path in files
        if path.startswith(prefix) and path.endswith(suffix)
    )
    return tuple(sorted({node for word in words if (node := _natural(word)) is not None}))


_RDMA = "/sys/class/infiniband/"
_RATE = re.compile(r"([\d.]+) Gb/sec")


def parse_rdma(files: Files, paths: Sequence[str]) -> tuple[RdmaDevice, ...]:
    """Return every RDMA device. Raises ValueError for a malformed rate or number."""
    found = []
    for name in _below(paths, _RDMA):
        if "/" in name:
            continue
        ports_of = f"{_RDMA}{name}/ports/"
        states = (re.match(rf"{re.escape(ports_of)}(\d+)/state$", path) for path in files)
        numbers = sorted(int(match[1]) for match in states if match)
        ports = tuple(_rdma_port(f"{ports_of}{number}", number, files) for number in numbers)
        device = RdmaDevice(
            name=name,
            nics=_below(paths, f"{_RDMA}{name}/device/net/"),
            link_layer=ports[0].link_layer if ports else "",
            active=any(port.active for port in ports),
            rate=first_line(files, f"{ports_of}{numbers[0]}/rate") if ports else "",
            ports=ports,
            node_type=first_line(files, f"{_RDMA}{name}/node_type"),
        )
        found.append(device)
    return tuple(found)


def _rdma_port(directory: str, number: int, files: Files) -> RdmaPort:
    rate = _RATE.match(first_line(files, f"{directory}/rate"))
    # The probe leaves out unused entries of the GID table.
    indices = sorted(int(index) for index in _below(files, f"{directory}/gids/"))
    gids = [
        Gid(
            index,
            first_line(files, f"{directory}/gids/{index}"),
            first_line(files, f"{directory}/gid_attrs/types/{index}"),
            first_line(files, f"{directory}/gid_attrs/ndevs/{index}"),
        )
        for index in indices
    ]
    return RdmaPort(
        number=number,
        active="ACTIVE" in first_line(files, f"{directory}/state"),
        link_layer=first_line(files, f"{directory}/link_layer"),
        rate=float(rate[1]) * 1000 if rate else None,
        gids=tuple(gids),
    )
