"""GPUs of this machine, shared out among the lab's hosts: a machine with a made-up driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.lab import gpus, hosts, nspawn
from clusterctl.lab.inventories import GpuLab, lab_inventory
from clusterctl.lab.layout import lab_host, lab_hosts
from clusterctl.lab.nspawn import nspawn_argv
from clusterctl.lab.paths import LabPaths
from clusterctl.lab.requirements import LabUnavailable

VERSION = "580.159.04"


def nodes(count: int) -> tuple[str, ...]:
    return tuple(f"/dev/nvidia{number}" for number in range(count))


@pytest.mark.parametrize(
    ("count", "among", "each"), [(8, 2, [4, 4]), (3, 2, [2, 1]), (8, 3, [3, 3, 2]), (2, 2, [1, 1])]
)
def test_neighbouring_gpus_go_to_one_host_and_none_is_left(
    count: int, among: int, each: list[int]
) -> None:
    shared = gpus.share_out(nodes(count), among)
    assert [len(one) for one in shared] == each
    assert sum(shared, ()) == nodes(count)


def test_two_hosts_cannot_have_one_gpu() -> None:
    with pytest.raises(LabUnavailable, match="this machine has 1") as refused:
        gpus.share_out(nodes(1), 2)
    assert refused.value.hint == "clusterctl lab up --gpus --hosts 1"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs, whose driver has a prefix of its own."""
    for directory in ("dev", "driver/bin", "driver/lib64"):
        (tmp_path / directory).mkdir(parents=True)
    for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    for name in (f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}", "libcuda.so.1.2.3"):
        (tmp_path / "driver/lib64" / name).touch()
    (tmp_path / "driver/lib64/libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (tmp_path / "version").write_text(f"{VERSION}\n")
    program(tmp_path, "nvidia-smi", "printf '0, Disabled\\n1, Disabled\\n'")
    program(tmp_path, "nvidia-ctk", "")
    monkeypatch.setenv("PATH", f"{tmp_path}/driver/bin:/usr/bin:/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def program(machine: Path, name: str, command: str) -> None:
    file = machine / "driver/bin" / name
    file.write_text(f"#!/bin/sh\n{command}\n")
    file.chmod(0o755)


def test_gpus_are_the_nodes_of_the_driver_in_their_order(machine: Path) -> None:
    (machine / "dev/nvidia10").touch()
    assert gpus.machine_gpus(machine / "dev") == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia10")


def test_a_gpu_that_mig_divides_is_refused_with_the_command_that_undoes_it(machine: Path) -> None:
    program(machine, "nvidia-smi", "printf '0, Disabled\\n1, Enabled\\n'")
    with pytest.raises(LabUnavailable, match="GPU 1 is divided by MIG") as refused:
        gpus.machine_gpus(machine / "dev")
    assert refused.value.hint == "nvidia-smi -i 1 -mig 0"


def test_a_machine_without_gpus_or_driver_is_told_what_it_lacks(
    machine: Path, tmp_path: Path
) -> None:
    with pytest.raises(LabUnavailable, match="is not loaded"):
        gpus.machine_driver(tmp_path / "none")
    for node in (machine / "dev").glob("nvidia?"):
        node.unlink()
    with pytest.raises(LabUnavailable, match="no NVIDIA GPU"):
        gpus.machine_gpus(machine / "dev")


def test_the_driver_is_its_programs_and_the_libraries_of_the_loaded_version(machine: Path) -> None:
    driver = gpus.machine_driver(machine / "version")
    libraries = machine / "driver/lib64"
    assert {
        source: driver.files[source] for source in driver.files if source.parent == libraries
    } == {
        libraries / f"libcuda.so.{VERSION}": f"{libraries}/libcuda.so.{VERSION}",
        libraries / f"libnvidia-ml.so.{VERSION}": f"{libraries}/libnvidia-ml.so.{VERSION}",
    }
    assert driver.files[machine / "driver/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert str(libraries) in driver.library_directories


def test_libraries_of_another_version_than_the_loaded_driver_are_named(machine: Path) -> None:
    (machine / "version").write_text("590.1\n")
    with pytest.raises(LabUnavailable, match=r"libcuda\.so\.590\.1"):
        gpus.machine_driver(machine / "version")


def test_the_toolkit_is_asked_for(machine: Path) -> None:
    (machine / "driver/bin/nvidia-ctk").unlink()
    with pytest.raises(LabUnavailable, match="toolkit") as refused:
        gpus.machine_driver(machine / "version")
    assert "apt-get install nvidia-container-toolkit" in (refused.value.hint or "")


def test_a_host_boots_with_its_own_gpus_and_the_machines_driver(machine: Path) -> None:
    driver = gpus.machine_driver(machine / "version")
    words = gpus.binds(["/dev/nvidia1"], driver)
    argv = nspawn_argv(lab_host(2), machine, unified=True, devices=words)
    assert "--bind=/dev/nvidia1" in argv
    assert "--bind=/dev/nvidia0" not in argv
    library = f"{machine}/driver/lib64/libcuda.so.{VERSION}"
    assert f"--bind-ro={library}:{library}" in argv


def test_a_host_prepares_its_gpus_at_each_boot(machine: Path, tmp_path: Path) -> None:
    driver, root = gpus.machine_driver(machine / "version"), tmp_path / "root"
    for _ in range(2):
        gpus.write_setup(root, driver)
    started = root / "etc/systemd/system/multi-user.target.wants/lab-gpus.service"
    assert str(started.readlink()) == gpus.UNIT_PATH
    assert (root / "usr/local/sbin/lab-gpus").stat().st_mode & 0o111
    named = (root / "etc/ld.so.conf.d/lab-gpus.conf").read_text().split()
    assert str(machine / "driver/lib64") in named


def test_other_gpus_mean_a_power_cycle_and_the_same_ones_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, host, halted = LabPaths(tmp_path), lab_host(1), []
    paths.host(host.name).mkdir(parents=True)
    monkeypatch.setattr(nspawn, "halt", lambda *_: halted.append(host.name))
    assert not hosts.give_gpus(host, paths, ())
    assert hosts.give_gpus(host, paths, nodes(1))
    assert not hosts.give_gpus(host, paths, nodes(1))
    assert hosts.give_gpus(host, paths, nodes(2))
    assert halted == [host.name] * 2


def test_the_inventory_of_a_lab_with_gpus_names_the_users_image_and_no_cpus() -> None:
    lab = GpuLab("vllm/vllm-openai:v0.33.0", Path("/images/vllm.tar"), gpus.share_out(nodes(3), 2))
    text = lab_inventory(lab_hosts(2), LabPaths(Path("/lab")), lab)
    assert "image: vllm/vllm-openai:v0.33.0" in text
    assert "image_archive: /images/vllm.tar" in text
    assert "cpu" not in text
    assert [line.strip() for line in text.splitlines() if "gpus:" in line] == ["gpus: 2", "gpus: 1"]
