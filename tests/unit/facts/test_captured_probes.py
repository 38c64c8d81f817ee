"""What parsers make of whole probes of different hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from clusterctl.facts.model import Address, Gid, RdmaPort
from clusterctl.facts.nics import parse_ssh_ip
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


def test_the_engine_says_its_version_storage_and_where_images_live(captured: Captured) -> None:
    engine = captured("debian-12-docker-20.10").facts.engine
    assert engine.installed
    assert engine.running
    assert (engine.version, engine.api_version) == ("20.10.24+dfsg1", "1.41")
    assert (engine.storage, engine.data_root) == ("vfs", "/var/lib/docker")
    assert (engine.cgroup_driver, engine.cgroup_version) == ("cgroupfs", "1")
    assert not engine.containerd_store
    assert not engine.rootless
    assert not engine.snap


def test_our_containers_come_with_state_labels_and_image(captured: Captured) -> None:
    found = {c.name: c for c in captured("debian-12-docker-20.10").containers}
    assert set(found) == {"clusterctl-demo", "clusterctl-old"}, "not the one without the label"
    demo = found["clusterctl-demo"]
    assert (demo.state, demo.exit_code) == ("running", 0)
    assert demo.labels["clusterctl.cluster"] == "demo"
    assert demo.labels["clusterctl.fingerprint"] == "abc123"
    assert (found["clusterctl-old"].state, found["clusterctl-old"].exit_code) == ("exited", 3)


def test_the_asked_image_comes_with_its_layers(captured: Captured) -> None:
    probe = captured("debian-12-docker-20.10")
    assert probe.image is not None
    assert probe.image.id == probe.containers[0].image
    assert probe.image.labels == {"clusterctl.ray": "2.60.0"}
    assert len(probe.image.layers) == 1
    assert probe.image.size == 2974440


def test_nothing_of_a_containers_environment_leaves_the_host(
    capture_text: Callable[[str], str],
) -> None:
    """The captured container was started with SECRET in its environment."""
    assert "should-not-travel" not in capture_text("debian-12-docker-20.10")


def test_a_daemon_that_is_down_is_told_in_dockers_words(captured: Captured) -> None:
    engine = captured("debian-12-daemon-down").facts.engine
    assert engine.installed
    assert not engine.running
    assert engine.error == (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
        "Is the docker daemon running?"
    )


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


def test_rdma_devices_say_which_nic_they_drive(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert facts.rdma_devices == ("mlx5_0", "mlx5_1")
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


def test_the_gpu_toolkit_and_its_device_specs(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert facts.nvidia_ctk == "/usr/bin/nvidia-ctk"
    assert facts.cdi_specs == ("/var/run/cdi/nvidia.yaml",)
    assert facts.engine.cdi_spec_dirs == ("/etc/cdi", "/var/run/cdi")
    assert "nvidia" in facts.engine.runtimes


def test_the_containerd_image_store_is_recognised(captured: Captured) -> None:
    engine = captured("ubuntu-24.04-8-gpus").facts.engine
    assert engine.containerd_store
    assert engine.storage == "overlayfs"


def test_a_moved_data_root_is_measured_where_it_is(captured: Captured) -> None:
    facts = captured("ubuntu-24.04-8-gpus").facts
    assert facts.engine.data_root == "/data/docker"
    disk = facts.disk("/data/docker")
    assert disk is not None
    assert disk.free == 14100000000 * 1024


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


def test_vlan_over_bond_over_two_nics(captured: Captured) -> None:
    facts = captured("rhel-9-podman").facts
    kinds = {nic.name: (nic.kind, nic.lower, nic.upper) for nic in facts.nics}
    assert kinds["bond0.120"] == ("vlan", ("bond0",), ())
    assert kinds["bond0"] == ("bond", ("eno1", "eno2"), ("bond0.120",))
    assert kinds["eno1"] == ("physical", (), ("bond0",))
    assert facts.default_nic == "bond0.120"


def test_podman_under_dockers_name_is_no_engine(captured: Captured) -> None:
    engine = captured("rhel-9-podman").facts.engine
    assert engine.podman
    assert not engine.running
    assert engine.error == "`docker` is Podman under another name"


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


def test_a_link_that_is_down_has_no_speed(captured: Captured) -> None:
    """Some drivers say 2**32 - 1 then."""
    nic = captured("spark-gb10-docker-denied").facts.nic("enp1s0f0np0")
    assert nic is not None
    assert (nic.state, nic.speed) == ("down", None)


def test_a_refused_docker_socket(captured: Captured) -> None:
    engine = captured("spark-gb10-docker-denied").facts.engine
    assert engine.installed
    assert engine.error is not None
    assert engine.error.startswith("permission denied")


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


def test_without_the_ip_command_the_kernel_says_the_same(captured: Captured) -> None:
    def addresses(name: str) -> dict[str, set[Address]]:
        return {nic.name: set(nic.addresses) for nic in captured(name).facts.nics}

    assert addresses("busybox-without-ip") == addresses("busybox")


def test_what_could_not_be_read_is_said(captured: Captured) -> None:
    unknown = captured("busybox").facts.unknown
    assert unknown[0] == "df: /: can't find mount point"
    assert "getent-is-not-installed" in unknown[1]
