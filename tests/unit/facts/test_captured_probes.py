"""What parsers make of whole probes of different hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from clusterctl.facts.model import Address
from clusterctl.facts.parse import Probe

Captured = Callable[[str], Probe]


def test_debian_with_docker_is_read_completely(captured: Captured) -> None:
    facts = captured("debian-12-docker-20.10").facts
    assert (facts.os.id, facts.os.version, facts.os.codename) == ("debian", "12", "bookworm")
    assert (facts.os.architecture, facts.os.kernel) == ("x86_64", "6.1.0-32-amd64")
    assert (facts.cpus, facts.memory) == (2, 24684096 * 1024)
    assert facts.hostname == "vm"
    assert facts.hostname_addresses == ("127.0.0.1",)
    assert (facts.root, facts.uid, facts.sudo_error) == (True, 0, None)
    assert (facts.python3, facts.python3_version) == ("/usr/bin/python3", "3.11")
    assert facts.cgroup_version == 1
    assert facts.default_nic == "eth0"
    assert 2024 in facts.listening_ports
    assert facts.unknown == ()


def test_ubuntu_with_eight_gpus(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    gpus = facts.gpus
    assert gpus.error is None
    assert gpus.pci_devices == 8, "the NVSwitch and the display card do not count"
    assert [gpu.index for gpu in gpus.gpus] == list(range(8))
    assert {gpu.model for gpu in gpus.gpus} == {"NVIDIA H200"}
    assert gpus.gpus[0].memory == 143771 * 2**20
    assert gpus.gpus[0].memory_used == 61234 * 2**20
    assert (gpus.gpus[7].compute_capability, gpus.gpus[7].mig) == ("9.0", False)
    assert gpus.gpus[7].pci_bus == "00000000:88:00.0"
    assert facts.cpus == 191, "one processor is not in the list of allowed ones"
    assert facts.cgroup_version == 2


def test_a_real_host_with_two_gpus_and_no_ip_command(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-2-gpus").facts
    assert [(gpu.index, gpu.model, gpu.driver) for gpu in facts.gpus.gpus] == [
        (0, "NVIDIA H200", "580.159.04"),
        (1, "NVIDIA H200", "580.159.04"),
    ]
    assert facts.gpus.pci_devices == 2
    nic = facts.nic("eth0")
    assert nic is not None
    assert [address.ip for address in nic.addresses] == [
        "192.0.2.2",
        "fe80::fc:ff:fe00:1",
        "fd00::2",
    ]
    assert facts.default_nic == "eth0"
    assert facts.rdma == ()
    assert facts.machine_id == ""
    assert facts.unknown == ()


def test_the_gpu_toolkit_and_its_device_specs(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert facts.cdi_specs == ("/var/run/cdi/nvidia.yaml",)
    assert facts.engine.cdi_spec_dirs == ("/etc/cdi", "/var/run/cdi")
    assert "nvidia" in facts.engine.runtimes


def test_asked_files_are_present_missing_or_unreadable(captured: Captured) -> None:
    probe = captured("ubuntu-24.04-8-gpus")
    assert probe.files == {
        "/etc/clusterctl/demo/node.json": b'{"host": "gpu1"}\n',
        "/etc/clusterctl/demo/services/*.json": None,
    }
    assert probe.unreadable == ("/etc/clusterctl/demo/ray.token",)


def test_the_clock_is_taken_at_the_end_of_the_probe(captured: Captured) -> None:
    """`date` ran half a second of uptime before the end."""
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert facts.clock == pytest.approx(1795262401.0)
    assert facts.clock_offset == pytest.approx(1.0)


def test_a_user_without_sudo(captured: Captured) -> None:
    facts = captured("rhel-9-podman").facts
    assert not facts.root
    assert facts.sudo_error == "sudo: a password is required"
    assert (facts.user, facts.uid) == ("ops", 1001)


def test_a_user_with_sudo_counts_as_root(captured: Captured) -> None:
    facts = captured("spark-gb10-docker-denied").facts
    assert facts.root
    assert facts.uid == 1000
    assert facts.sudo_error is None


def test_a_broken_driver_is_told_in_nvidias_words(captured: Captured) -> None:
    report = captured("rhel-9-podman").facts.gpus
    assert report.gpus == ()
    assert report.error is not None
    assert report.error.startswith("NVIDIA-SMI has failed because it couldn't communicate")


def test_a_gpu_without_memory_of_its_own(captured: Captured) -> None:
    (gpu,) = captured("spark-gb10-docker-denied").facts.gpus.gpus
    assert (gpu.model, gpu.memory, gpu.memory_used, gpu.mig) == (
        "NVIDIA GB10",
        128525795328,
        None,
        False,
    )
    assert gpu.unified, "its memory is the host's"


def test_an_ipv6_only_host_without_engine_driver_or_python(captured: Captured) -> None:
    facts = captured("debian-13-ipv6-only").facts
    nic = facts.nic("eth0")
    assert nic is not None
    assert nic.addresses[0] == Address("2001:db8:1::11", 64, "global")
    assert facts.default_nic == "eth0"
    assert facts.listening_ports == (22,)
    assert facts.cpus == 5
    assert facts.nofile_hard == sys.maxsize
    assert not facts.engine.installed
    assert facts.gpus.error == "nvidia-smi is not installed"
    assert facts.gpus.pci_devices == 2
    assert facts.python3 is None
    assert facts.clock == pytest.approx(1795262400.03)


def test_busybox_alone_is_enough(captured: Captured) -> None:
    probe = captured("busybox")
    facts = probe.facts
    assert (facts.os.id, facts.user, facts.cpus) == ("alpine", "operator", 2)
    assert facts.nic_with("10.78.0.1") is facts.nic("lab-fabric")
    assert probe.files == {"/etc/some": b"data\n", "/etc/none": None}
    assert facts.clock == pytest.approx(1795263930.02)


def test_what_could_not_be_read_is_said(captured: Captured) -> None:
    unknown = captured("busybox").facts.unknown
    assert unknown[0] == "df: /: can't find mount point"
    assert "getent-is-not-installed" in unknown[1]
