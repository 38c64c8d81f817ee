"""What parsers make of the interfaces and RDMA devices in whole probes of different hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from clusterctl.facts.model import Address, Gid, RdmaPort
from clusterctl.facts.nics import parse_ssh_ip
from clusterctl.facts.parse import Probe

Captured = Callable[[str], Probe]


def test_rdma_devices_say_which_nic_they_drive(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert [device.name for device in facts.rdma] == ["mlx5_0", "mlx5_1"]
    with_port, without_link = facts.rdma
    assert (with_port.name, with_port.nics, with_port.active) == ("mlx5_0", ("ens5f0np0",), True)
    assert (with_port.link_layer, with_port.rate) == ("Ethernet", "200 Gb/sec (4X HDR)")
    assert (without_link.name, without_link.nics, without_link.active) == ("mlx5_1", (), False)
    assert facts.rdma_nodes == ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")


def test_rdma_ports_say_their_gids_less_the_zeros(captured: Captured) -> None:
    active, down = (device.ports[0] for device in captured("ubuntu-24.04-8-gpus").facts.rdma)
    assert (active.number, active.rate, active.link_layer) == (1, 200_000.0, "Ethernet")
    assert active.gids[0] == Gid(
        0, "fe80:0000:0000:0000:ba3f:d2ff:fe00:0020", "IB/RoCE v1", "ens5f0np0"
    )
    assert [(gid.index, gid.type) for gid in active.gids[1:]] == [(1, "RoCE v2"), (3, "RoCE v2")]
    assert down == RdmaPort(1, active=False, link_layer="InfiniBand", rate=10_000.0, gids=())


@pytest.mark.parametrize(
    ("said", "ip"),
    [
        ("192.0.2.9 50122 192.0.2.2 22", "192.0.2.2"),
        ("fd00::9 5 fd00:0::2 22", "fd00::2"),
        ("", ""),
    ],
)
def test_the_address_that_ssh_came_in_by(said: str, ip: str) -> None:
    assert parse_ssh_ip(said) == ip


def test_what_rdma_needs_besides_devices(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert facts.memlock_hard == sys.maxsize
    assert facts.peer_memory
    assert facts.gpu_numa_nodes == (0, 1)
    older = captured("debian-12-docker-20.10").facts
    assert (older.memlock_hard, older.peer_memory, older.gpu_numa_nodes) == (None, False, ())


def test_nics_with_speed_mtu_numa_and_kind(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    fabric = facts.nic("ens5f0np0")
    assert fabric is not None
    assert (fabric.speed, fabric.mtu, fabric.numa_node) == (200000, 9000, 1)
    assert (fabric.kind, fabric.state) == ("physical", "up")
    assert facts.nic_with("10.2.0.11") is fabric
    bridge = facts.nic("docker0")
    assert bridge is not None
    assert (bridge.kind, bridge.state, bridge.speed) == ("bridge", "down", None)
    assert facts.default_nic == "eno1", "the lower metric wins"


def test_vlan_over_bond_over_two_nics(captured: Captured) -> None:
    facts = captured("rhel-9-podman").facts
    kinds = {nic.name: (nic.kind, nic.lower, nic.upper) for nic in facts.nics}
    assert kinds["bond0.120"] == ("vlan", ("bond0",), ())
    assert kinds["bond0"] == ("bond", ("eno1", "eno2"), ("bond0.120",))
    assert kinds["eno1"] == ("physical", (), ("bond0",))
    assert facts.default_nic == "bond0.120"


def test_a_link_that_is_down_has_no_speed(captured: Captured) -> None:
    """Some drivers say 2**32 - 1 then."""
    nic = captured("spark-gb10-docker-denied").facts.nic("enp1s0f0np0")
    assert nic is not None
    assert (nic.state, nic.speed) == ("down", None)


def test_without_the_ip_command_the_kernel_says_the_same(captured: Captured) -> None:
    def addresses(name: str) -> dict[str, set[Address]]:
        return {nic.name: set(nic.addresses) for nic in captured(name).facts.nics}

    assert addresses("busybox-without-ip") == addresses("busybox")
