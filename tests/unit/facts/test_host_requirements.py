"""What is said of a host that does not keep the inventory's promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import GpuFacts, GpuReport, HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.units import GIB
from tests.fakes.host_facts import nic
from tests.unit.facts.judged import notes, problems

Captured = Callable[[str], Probe]


def inventory(host: Mapping[str, Any] | None = None, **fields: Any) -> Inventory:
    head = Host(name="gpu1", address="10.1.0.11", role="head", **(host or {}))
    return Inventory(cluster="demo", image="vllm:1", hosts=(head,), **fields)


def found(
    facts: HostFacts,
    host: Mapping[str, Any] | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    **fields: Any,
) -> list[RequirementsNotMet]:
    return list(problems(inventory(host, **fields), {"gpu1": facts}, **(arguments or {})))


def only(*problems: RequirementsNotMet) -> RequirementsNotMet:
    (problem,) = problems
    assert problem.hint
    return problem


def test_a_host_that_keeps_its_promises_has_no_problem(healthy: HostFacts) -> None:
    host = {
        "node_ip": "10.2.0.11",
        "nics": {"control": "ens5f0np0", "nccl": "ens5f0np0", "gloo": "eno1", "rdma": ["mlx5_0"]},
        "gpus": ({"model": "NVIDIA H200", "memory": 141 * 10**9},) * 8,
    }
    assert found(healthy, host) == []


def test_no_root_and_no_sudo(captured: Captured) -> None:
    facts = captured("rhel-9-podman").facts
    problem = found(facts)[0]
    assert str(problem) == "gpu1: ops is not root and cannot become root with sudo"
    assert problem.hint == (
        "as root on it: usermod -aG sudo ops; or set CLUSTERCTL_SUDO_PASSWORD, or ssh.user: root"
    )
    assert problem.detail == "sudo: a password is required"


def test_an_architecture_without_images(healthy: HostFacts) -> None:
    facts = replace(healthy, os=replace(healthy.os, architecture="ppc64le"))
    problem = only(*found(facts))
    assert problem.summary == "its processor is ppc64le; images exist for x86_64 and aarch64"


def test_aarch64_is_fine(healthy: HostFacts) -> None:
    assert found(replace(healthy, os=replace(healthy.os, architecture="aarch64"))) == []


def test_a_nic_that_is_not_there_is_answered_with_those_that_are(healthy: HostFacts) -> None:
    problem = only(*found(healthy, {"nics": {"nccl": "eth0", "gloo": "eth0"}}))
    assert problem.summary == (
        "has no interface eth0 (nics.nccl, nics.gloo); it has eno1 (10.1.0.11), "
        "ens5f0np0 (10.2.0.11), docker0 (172.17.0.1)"
    )


def test_a_nic_that_is_down(captured: Captured) -> None:
    facts = captured("spark-gb10-docker-denied").facts
    problem = only(*found(facts, {"nics": {"nccl": "enp1s0f0np0"}}))
    assert problem.summary == "interface enp1s0f0np0 (nics.nccl) is down"
    assert "ip link set enp1s0f0np0 up" in str(problem.hint)


def test_a_nic_without_address(healthy: HostFacts) -> None:
    bare = replace(healthy.nics[2], addresses=())
    facts = replace(healthy, nics=(*healthy.nics[:2], bare))
    problem = only(*found(facts, {"nics": {"gloo": "ens5f0np0"}}))
    assert problem.summary == "interface ens5f0np0 (nics.gloo) has no IP address"


def test_a_node_ip_on_another_nic_than_the_control_nic(healthy: HostFacts) -> None:
    problem = only(*found(healthy, {"node_ip": "10.1.0.11", "nics": {"control": "ens5f0np0"}}))
    assert problem.summary == ("node_ip 10.1.0.11 is on eno1, not on ens5f0np0 (nics.control)")


def test_ipv6_addresses_are_compared_as_addresses(captured: Captured) -> None:
    facts = replace(captured("debian-13-ipv6-only").facts, disks=())
    assert found(facts, {"node_ip": "2001:0db8:0001::0011"}, accelerator="cpu") == []


def test_the_subnet_does_not_matter_where_the_host_says_it_all(healthy: HostFacts) -> None:
    assert found(healthy, {"node_ip": "10.2.0.11"}, network={"subnet": "192.168.1.0/24"}) == []


def test_rdma_devices_missing_and_inactive(healthy: HostFacts) -> None:
    missing, inactive = found(healthy, {"nics": {"rdma": ["mlx5_9", "mlx5_1"]}})
    assert missing.summary == "has no RDMA device mlx5_9 (nics.rdma); it has mlx5_0, mlx5_1"
    assert inactive.summary == "no port of RDMA device mlx5_1 (nics.rdma) is active"


def test_more_gpus_expected_than_present(healthy: HostFacts) -> None:
    problem = only(*found(healthy, {"gpus": ({},) * 9}))
    assert (
        problem.summary
        == "the inventory declares 9 GPUs, but the host has 8: 8 x NVIDIA H200 (140.4 GiB)"
    )


def gpu(model: str, mebibytes: int | None) -> GpuFacts:
    memory = mebibytes * 2**20 if mebibytes else None
    return GpuFacts(0, "GPU-1", model, memory, "570.1")


@pytest.mark.parametrize(
    ("promise", "there"),
    [
        ({"model": "GeForce RTX 3090", "memory": 24 * GIB}, ("NVIDIA GeForce RTX 3090", 24576)),
        ({"model": "H800", "memory": 80 * GIB}, ("NVIDIA H800 PCIe", 81559)),
        ({"model": "nvidia a100", "memory": 80 * GIB}, ("NVIDIA A100-SXM4-80GB", 81920)),
        ({"model": "L4", "memory": 24 * GIB}, ("NVIDIA L4", 23034)),
        ({"memory": 141 * 10**9}, ("NVIDIA H200", 143771)),
        ({"model": "GB10", "memory": 128 * GIB}, ("NVIDIA GB10", None)),
        ({}, ("NVIDIA T4", 15360)),
    ],
)  # fmt: skip
def test_gpus_that_are_what_was_promised(
    promise: dict[str, Any], there: tuple[str, int], healthy: HostFacts
) -> None:
    facts = replace(healthy, gpus=GpuReport((gpu(*there),), None))
    assert found(facts, {"gpus": (promise,)}) == []


@pytest.mark.parametrize(
    ("promise", "there", "said"),
    [
        (
            {"model": "NVIDIA H800", "memory": 80 * GIB},
            ("NVIDIA GeForce RTX 3090", 24576),
            "the inventory declares NVIDIA H800 (80 GiB), but the host has 1 x NVIDIA GeForce "
            "RTX 3090 (24 GiB)",
        ),
        (
            {"model": "RTX 3090"},
            ("NVIDIA GeForce RTX 3090 Ti", 24564),
            "the inventory declares RTX 3090, but the host has 1 x NVIDIA GeForce RTX 3090 Ti "
            "(24 GiB)",
        ),
        (
            {"model": "NVIDIA A100", "memory": 80 * GIB},
            ("NVIDIA A100-PCIE-40GB", 40960),
            "the inventory declares NVIDIA A100 (80 GiB), but the host has 1 x NVIDIA "
            "A100-PCIE-40GB (40 GiB)",
        ),
        (
            {"memory": 16 * GIB},
            ("NVIDIA L4", 23034),
            "the inventory declares a GPU (16 GiB), but the host has 1 x NVIDIA L4 (22.5 GiB)",
        ),
    ],
)
def test_gpus_that_are_something_else(
    promise: dict[str, Any], there: tuple[str, int], said: str, healthy: HostFacts
) -> None:
    facts = replace(healthy, gpus=GpuReport((gpu(*there),), None))
    assert only(*found(facts, {"gpus": (promise,)})).summary == said


def test_a_mixed_host_is_matched_whatever_the_order(healthy: HostFacts) -> None:
    there = GpuReport((gpu("NVIDIA L4", 23034), gpu("NVIDIA H800", 81559)), None)
    promised: tuple[dict[str, str], ...] = ({}, {"model": "L4"})
    facts = replace(healthy, gpus=there)
    assert found(facts, {"gpus": promised}) == []
    assert found(facts, {"gpus": tuple(reversed(promised))}) == []


@pytest.mark.parametrize(
    ("report", "hint"),
    [
        (GpuReport((), "nvidia-smi is not installed", 2), "sudo ubuntu-drivers install"),
        (
            GpuReport((), "nvidia-smi is not installed", 2),
            "or: clusterctl bootstrap /srv/demo.yaml --install-driver FILE.run",
        ),
        (GpuReport((), "nvidia-smi is not installed", 0), "lspci -d 10de:"),
        (
            GpuReport((), "Failed to initialize NVML: Driver/library version mismatch", 2),
            "sudo reboot",
        ),
    ],
)
def test_a_host_whose_gpus_cannot_be_used(report: GpuReport, hint: str, healthy: HostFacts) -> None:
    file = Path("/srv/demo.yaml")
    problem = only(*found(replace(healthy, gpus=report), {"gpus": ({}, {})}, source=file))
    assert problem.summary == f"the inventory declares 2 GPUs, but none can be used: {report.error}"
    assert hint in str(problem.hint)


def test_a_module_that_is_not_loaded_for_reasons_not_known(healthy: HostFacts) -> None:
    report = GpuReport((), "NVIDIA-SMI has failed because it couldn't communicate", 2)
    problem = only(*found(replace(healthy, gpus=report), {"gpus": ({}, {})}))
    assert problem.summary.endswith("none can be used: the driver's kernel module is not loaded")
    assert problem.detail == report.error
    hint = str(problem.hint)
    assert hint.startswith("sudo modprobe nvidia shows why. 'Key was rejected': Secure Boot")
    assert "mokutil --import /var/lib/shim-signed/mok/MOK.der" in hint
    assert (
        f"'not found': no module for this kernel; sudo {'apt-get install linux-headers-'}" in hint
    )


def test_a_cluster_on_cpus_needs_no_driver(healthy: HostFacts) -> None:
    facts = replace(healthy, gpus=GpuReport((), "nvidia-smi is not installed"))
    assert found(facts, {"gpus": ({}, {})}, accelerator="cpu") == []


def test_ports_that_ray_needs(healthy: HostFacts) -> None:
    facts = replace(healthy, listening_ports=(22, 6379, 8265))
    problem = only(*found(facts))
    assert problem.summary == (
        "ports that Ray needs are taken: 6379 (ray_ports.gcs), 8265 (ray_ports.dashboard)"
    )
    assert problem.hint == (
        "to see by what: sudo ss -ltnp 'sport = :6379 or sport = :8265'; end it, or set ray_ports: "
        "{gcs: 6386, dashboard: 8266}"
    )


def test_offered_ports_are_free_on_all_hosts(healthy: HostFacts) -> None:
    worker = Host(name="gpu2", address="10.1.0.12")
    cluster = inventory().model_copy(update={"hosts": (*inventory().hosts, worker)})
    first, second = (replace(healthy, hostname=n, boot_id=n, listening_ports=ports)
                     for n, ports in (("a", (6379,)), ("b", (6386, 6387))))  # fmt: skip
    problem = only(*problems(cluster, {"gpu1": first, "gpu2": second}))
    assert str(problem.hint).endswith("set ray_ports: {gcs: 6388}")


def test_ports_are_not_judged_without_root(healthy: HostFacts) -> None:
    """This very cluster may use them: its container is not seen."""
    (problem,) = found(replace(healthy, root=False, listening_ports=(6379,)))
    assert "cannot become root with sudo" in problem.summary


def test_ray_passes_over_busy_ports_of_its_workers(healthy: HostFacts) -> None:
    """DGX Spark's dashboard has 127.0.0.1:11000."""
    busy = replace(healthy, listening_ports=(22, 11000, *range(11100, 11500)))
    assert found(busy) == []


def test_too_few_ports_are_left_for_workers(healthy: HostFacts) -> None:
    busy = replace(healthy, cpus=16, listening_ports=(22, 12050, *range(11000, 11940)))
    problem = only(*found(busy))
    assert problem.summary == (
        "940 of the 1000 ports of Ray's workers (11000 to 11999) are taken, and its 16 CPUs need 64"
    )
    assert "set ray_ports: {min_worker: 12100, max_worker: 13099}" in str(problem.hint)


def test_ephemeral_ports_among_those_of_ray_are_noted(healthy: HostFacts) -> None:
    wide, usual = (
        replace(healthy, ephemeral_ports=ports) for ports in ((1024, 65535), (32768, 60999))
    )
    (note,) = (text for text in notes(inventory(), {"gpu1": wide}) if "ip_local_port_range" in text)
    assert "begins at 1024, below ports of Ray (6379, 6380" in note
    assert "sudo sysctl -w net.ipv4.ip_local_port_range='32768 65535'" in note
    assert "ip_local_port_range" not in "\n".join(notes(inventory(), {"gpu1": usual}))


def test_ports_of_our_own_ray_are_no_problem(healthy: HostFacts) -> None:
    facts = replace(healthy, listening_ports=(22, 6379))
    assert found(facts, arguments={"ours": {"gpu1"}}) == []


def test_a_workers_ports_are_fewer(healthy: HostFacts) -> None:
    worker = Host(name="gpu2", address="10.1.0.12")
    cluster = inventory().model_copy(update={"hosts": (*inventory().hosts, worker)})
    facts = replace(healthy, listening_ports=(6379, 6380))
    problem = only(*problems(cluster, {"gpu2": facts}))
    assert problem.host == "gpu2"
    assert problem.summary == "a port that Ray needs is taken: 6380 (ray_ports.node_manager)"


def test_all_problems_come_at_once(captured: Captured) -> None:
    facts = captured("rhel-9-podman").facts
    saw = found(
        facts,
        {"nics": {"nccl": "eth9"}, "node_ip": "10.0.0.1", "gpus": ({},)},
        arguments={"image_size": 100 * GIB},
    )
    assert len(saw) == 5
    assert {problem.host for problem in saw} == {"gpu1"}
    assert all(problem.hint for problem in saw)
    assert {problem.exit_code for problem in saw} == {5}


def test_a_host_without_facts_is_passed_over() -> None:
    assert problems(inventory(), {}) == ()
    assert notes(inventory(), {}) == ()


def noted(facts: HostFacts, host: Mapping[str, Any] | None = None, **fields: Any) -> str:
    return "\n".join(notes(inventory(host, **fields), {"gpu1": facts}))


def test_a_healthy_host_is_noted_only_for_its_loopback_name(healthy: HostFacts) -> None:
    facts = replace(healthy, hostname_addresses=("10.1.0.11",))
    assert noted(facts, {"gpus": ({},) * 8}) == ""
    assert noted(healthy, {"gpus": ({},) * 8}).startswith(
        "gpu1: its name gpu1 resolves to 127.0.1.1: harmless here"
    )


def test_addresses_of_the_internet_are_noted_unless_something_closes_the_ports(
    healthy: HostFacts,
) -> None:
    facts = replace(healthy, nics=(*healthy.nics, nic("eth9", "8.8.4.4")))
    gpu: dict[str, Any] = {"gpus": ({},) * 8}
    assert "its address 8.8.4.4 on eth9 is public" in noted(facts, gpu)
    for key in ("firewall", "public"):
        assert "8.8.4.4" not in noted(facts, gpu, network={key: True})


def test_notes_say_what_does_not_stop_anything(captured: Captured) -> None:
    facts = captured("spark-gb10-docker-denied").facts
    text = noted(replace(facts, nofile_hard=4096, unknown=("disks could not be read",)),
                 {"gpus": ({"memory": 128 * GIB},)})  # fmt: skip
    assert "its GPU shares the host's memory, which is counted as the GPU's" in text
    assert "at most 4096 open files, 65536 are better" in text
    assert "not known: disks could not be read" in text
    assert "Docker is installed but not running" not in text
    assert "not checked without root: Docker" in text


def test_an_engine_that_starts_no_container_with_gpus_again_is_noted(healthy: HostFacts) -> None:
    """Only where containers get GPUs by CDI, and with what starts them: systemd, or the user."""
    gpus: dict[str, Any] = {"gpus": ({},) * 8}
    with_cdi = replace(healthy.engine, version="26.1.5+dfsg1", cdi_spec_dirs=("/etc/cdi",))
    specs = ("/etc/cdi/nvidia.yaml",)
    facts = replace(healthy, engine=with_cdi, cdi_specs=specs, systemd=True)
    text = noted(facts, gpus)
    assert "Docker 26.1.5+dfsg1 does not give containers their GPUs when it restarts them" in text
    assert "a unit that bootstrap adds to systemd starts the node container" in text
    assert "run clusterctl bootstrap" in noted(replace(facts, systemd=False), gpus)
    for other in (
        replace(facts, cdi_specs=()),
        replace(facts, engine=replace(with_cdi, version="28.2.0")),
        replace(facts, engine=replace(with_cdi, version="29.1.3")),
    ):
        assert "does not give containers" not in noted(other, gpus)


def test_selinux_is_noted_where_it_is_enforcing(captured: Captured) -> None:
    facts = captured("rhel-9-podman").facts
    assert "SELinux is enforcing" in noted(facts)
    assert "SELinux" not in noted(replace(facts, selinux="permissive"))
    assert captured("ubuntu-24.04-8-gpus").facts.selinux == ""


def test_gpus_besides_the_promise_are_noted(healthy: HostFacts) -> None:
    assert "has 8 GPUs, but the inventory declares 2" in noted(healthy, {"gpus": ({}, {})})
    assert "has 8 x NVIDIA H200 (140.4 GiB), but the inventory declares none" in noted(healthy)


def test_complaints_are_noted(healthy: HostFacts) -> None:
    facts = replace(healthy, gpus=GpuReport(healthy.gpus.gpus[:1], "WARNING: infoROM is corrupted"))
    text = noted(facts, {"gpus": ({},)})
    assert "nvidia-smi says: WARNING: infoROM is corrupted" in text
