"""What hosts report of their network, beside the captures."""

from __future__ import annotations

import json
from ipaddress import IPv4Network
from typing import Any

import pytest

from clusterctl.facts.model import HostRoute
from clusterctl.facts.nics import parse_firewall, parse_nics, parse_routes
from clusterctl.facts.sections import Section


def kinds(*links: Any, paths: tuple[str, ...] = ()) -> dict[str, str]:
    said = Section("addresses", "", json.dumps(links))
    return {nic.name: nic.kind for nic in parse_nics({}, said, paths)}


def test_interfaces_without_hardware_have_the_kind_that_ip_names() -> None:
    """As `ip -j -d addr` of iproute2 6.1 prints it."""
    links = (
        {"ifname": "eno1"},
        {"ifname": "team0", "linkinfo": {"info_kind": "team"}},
        {"ifname": "br-ex", "linkinfo": {"info_kind": "openvswitch"}},
        {"ifname": "office", "linkinfo": {"info_kind": "wireguard"}},
        {"ifname": "nameless"},
    )
    assert kinds(*links, paths=("/sys/class/net/eno1/device",)) == {
        "eno1": "physical",
        "team0": "team",
        "br-ex": "openvswitch",
        "office": "wireguard",
        "nameless": "virtual",
    }


def test_routes_are_read_from_little_endian_hex() -> None:
    lines = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT",
        "eno1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0",
        "eno1\t000010AC\t0100000A\t0003\t0\t0\t0\t0000F0FF\t0\t0\t0",
        "lo\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0",
    )
    assert parse_routes({"/proc/net/route": lines}) == (
        HostRoute("eno1", IPv4Network("0.0.0.0/0"), 100, direct=False),
        HostRoute("eno1", IPv4Network("172.16.0.0/12"), 0, direct=False),
    )


WANTS = "/etc/systemd/system/multi-user.target.wants"


@pytest.mark.parametrize(
    ("paths", "ufw", "firewall"),
    [
        ((f"{WANTS}/nftables.service", "/sys/fs/cgroup/system.slice/firewalld.service"), True,
         "firewalld"),
        ((), True, "ufw"),
        ((f"{WANTS}/netfilter-persistent.service",), False, "iptables"),
        (("/etc/systemd/system/sysinit.target.wants/nftables.service",), False, "nftables"),
        ((), False, ""),
    ],
)  # fmt: skip
def test_what_rules_over_incoming_connections(
    paths: tuple[str, ...], ufw: bool, firewall: str
) -> None:
    files = {"/etc/ufw/ufw.conf": ("ENABLED=yes",)} if ufw else {}
    assert parse_firewall(files, paths) == firewall
