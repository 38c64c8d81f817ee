"""Every GPU fault by its name and with its fix, from what the tools print.

Formats: nvidia-smi's queries as an H200 with driver 580 answered them; lines of the kernel's log
and nvidia-smi's complaints as NVIDIA's Xid guide, nvidia-docker issue 1730 and
nvidia-container-toolkit issue 48 show them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import parse_probe
from clusterctl.facts.sections import split_sections
from clusterctl.inventory.model import Gpu, Host, Inventory
from tests.unit.facts.judged import notes, problems

BUSES = ("18", "28")
RAN = "[   3.463361] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n"

Said = Callable[..., HostFacts]


def smi(
    *, mig: str = "Disabled", ecc: str = "0", persistence: str = "Enabled", fabric: str = "N/A",
    recovery: str = "None", driver: str = "580.159.04", count: int = 2,
) -> str:  # fmt: skip
    """What nvidia-smi prints for two GPUs, the fault being that of the first."""
    lines = [
        f"{n}, GPU-0000000{n}-1111-2222-3333-444455556666, NVIDIA H200, 143771, {driver}, 4, "
        f"{mig if n == 0 else 'Disabled'}, 9.0, 00000000:{BUSES[n]}:00.0, "
        f"{ecc if n == 0 else 0}, {persistence}, {fabric}, {recovery if n == 0 else 'None'}\n"
        for n in range(count)
    ]
    return "".join(lines)


@pytest.fixture
def said(capture_text: Callable[[str], str]) -> Said:
    """Facts of a healthy host with two H200, sections replaced or added: name to (status, text).
    `paths` are added to those that are there, `image` to what the engine says of the image."""

    def facts(paths: str = "", **sections: tuple[int, str]) -> HostFacts:
        before, _, after = capture_text("ubuntu-24.04-8-gpus").partition("MARK gpus 0")
        rest = after[after.index("MARK engine") :]
        before = before.replace("MARK shell", f"{paths}\nMARK shell")
        lines = [line for line in before.splitlines() if "/sys/bus/pci" not in line]
        text = "\n".join(lines).replace("MARK paths", f"{_pci()}\nMARK paths", 1)
        mine = {"gpus": (0, smi()), **sections}
        said = "".join(f"\nMARK {name} {status}\n{words}" for name, (status, words) in mine.items())
        answer = split_sections(f"{text}\n{said}\n{rest}", "MARK")
        found = parse_probe(answer, sudo_error=None, received=0.0).facts
        assert found.unknown == ()
        return replace(found, listening_ports=(22,), hostname_addresses=("10.1.0.11",))

    return facts


def _pci() -> str:
    return "\n".join(
        f"/sys/bus/pci/devices/0000:{bus}:00.0/vendor:0x10de\n"
        f"/sys/bus/pci/devices/0000:{bus}:00.0/class:0x030200"
        for bus in BUSES
    )


def inventory() -> Inventory:
    host = Host(name="gpu1", address="10.1.0.11", role="head", gpus=(Gpu(), Gpu()))
    return Inventory(cluster="demo", image="vllm:1", hosts=(host,), source=Path("/srv/demo.yaml"))


def found(facts: HostFacts, **arguments: object) -> list[RequirementsNotMet]:
    return list(problems(inventory(), {"gpu1": facts}, **arguments))


def only(facts: HostFacts) -> tuple[str, str]:
    (problem,) = found(facts)
    return problem.summary, str(problem.hint)


def noted(facts: HostFacts) -> str:
    return "\n".join(notes(inventory(), {"gpu1": facts}))


def test_two_healthy_gpus_are_no_problem(said: Said) -> None:
    facts = said(
        gpu_rows=(0, "00000000:18:00.0, No, No\n00000000:28:00.0, No, No\n"),
        gpu_processes=(0, ""),
        kernel_log=(0, RAN),
    )
    assert found(facts) == []
    assert noted(facts) == ""
    assert facts.gpus.pci_devices == 2


def test_nouveau_holds_the_gpus(said: Said) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    summary, hint = only(said(paths="/sys/module/nouveau", gpus=(9, words)))
    assert (
        summary
        == "the inventory declares 2 GPUs, but none can be used: the kernel's nouveau driver "
        "holds them"
    )
    assert "blacklist nouveau" in hint
    assert "update-initramfs -u; sudo reboot" in hint


@pytest.mark.parametrize(
    ("words", "help_"),
    [
        ("Failed to initialize NVML: Unknown Error", "nvidia-persistenced"),
        ("Failed to initialize NVML: Driver/library version mismatch", "sudo reboot"),
        ("Failed to initialize NVML: Insufficient Permissions", "ssh.user: root"),
        ("No devices were found", "dmesg"),
    ],
)
def test_what_nvidia_smi_complains_of_is_the_cause(said: Said, words: str, help_: str) -> None:
    summary, hint = only(said(gpus=(255, f"{words}\n")))
    assert summary == f"the inventory declares 2 GPUs, but none can be used: {words}"
    assert help_ in hint


def test_a_gpu_that_fell_off_the_bus(said: Said) -> None:
    lost = "Unable to determine the device handle for GPU0000:28:00.0: GPU is lost.  Reboot the system to recover this GPU\n"  # noqa: E501
    log = f"{RAN}[ 99.1] NVRM: Xid (PCI:0000:28:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"  # noqa: E501
    lines, xid = found(said(gpus=(0, smi(count=1) + lost), kernel_log=(0, log)))
    assert lines.summary == (
        "the inventory declares 2 GPUs, but nvidia-smi shows 1 of the 2 on its PCI bus: one "
        "fell off the bus"
    )
    assert "GPU is lost" in str(lines.detail)
    assert xid.summary == "the GPU at 0000:28:00 reported Xid 79: GPU has fallen off the bus"
    assert xid.hint == "sudo reboot"


@pytest.mark.parametrize("code", [48, 64, 74, 95, 119])
def test_a_serious_xid_of_an_old_driver(said: Said, code: int) -> None:
    log = f"{RAN}[ 99.1] NVRM: Xid (PCI:0000:18:00): {code}, pid=1896, words\n"
    smi_of_old_driver = smi(driver="535.161.08").replace(", None\n", ", [N/A]\n")
    summary, hint = only(said(gpus=(0, smi_of_old_driver), kernel_log=(0, log)))
    assert summary.startswith(f"GPU 0 (00000000:18:00.0) reported Xid {code}: ")
    assert "nvidia-smi --gpu-reset -i 0000:18:00" in hint
    assert "dmesg --clear" in hint


def test_an_old_xid_of_a_gpu_that_the_driver_calls_healthy_is_past(said: Said) -> None:
    log = f"{RAN}[ 99.1] NVRM: Xid (PCI:0000:18:00): 48, pid=1896, words\n"
    assert found(said(kernel_log=(0, log))) == []


def test_an_xid_from_before_the_driver_was_loaded_again_is_past(said: Said) -> None:
    log = f"[ 99.1] NVRM: Xid (PCI:0000:18:00): 95, pid=1896, words\n{RAN}"
    facts = said(gpus=(0, smi(recovery="[N/A]")), kernel_log=(0, log))
    assert found(facts) == []
    assert facts.gpus.xids == ()


def test_xids_that_blame_a_program_or_can_wait_stop_nothing(said: Said) -> None:
    log = (
        f"{RAN}[ 98.0] NVRM: Xid (PCI:0000:18:00): 31, pid=1, name=python3, MMU Fault\n"
        "[ 99.1] NVRM: Xid (PCI:0000:18:00): 63, pid=1896, Row Remapper: New row marked\n"
    )
    facts = said(kernel_log=(0, log))
    assert found(facts) == []
    assert noted(facts) == (
        "gpu1: the GPU at 0000:18:00 reported Xid 63: GPU memory remapping event"
    )


def test_what_the_driver_itself_asks_for(said: Said) -> None:
    summary, hint = only(said(gpus=(0, smi(recovery="Reboot"))))
    assert summary == "GPU 0 (00000000:18:00.0) needs recovery: the driver says Reboot"
    assert hint == "sudo reboot"


def test_uncorrectable_memory_errors(said: Said) -> None:
    summary, hint = only(said(gpus=(0, smi(ecc="2"))))
    assert summary == (
        "GPU 0 (00000000:18:00.0) had 2 uncorrectable memory errors (ECC) since its last reset"
    )
    assert "--gpu-reset -i 00000000:18:00.0" in hint


@pytest.mark.parametrize(
    ("pending", "failed", "summary"),
    [("Yes", "No", "which is replaced at the next reset"), ("Yes", "Yes", "no spare row")],
)
def test_bad_rows_of_memory(said: Said, pending: str, failed: str, summary: str) -> None:
    rows = f"00000000:18:00.0, {pending}, {failed}\n00000000:28:00.0, No, No\n"
    assert summary in only(said(gpu_rows=(0, rows)))[0]


def test_mig(said: Said) -> None:
    summary, hint = only(said(gpus=(0, smi(mig="Enabled"))))
    assert summary.startswith("MIG is on (GPU 0): a program sees one instance")
    assert hint == "sudo nvidia-smi -i 0 -mig 0"


@pytest.mark.parametrize(
    ("section", "fabric"), [({"fabric_manager": (3, "inactive\n")}, "N/A"), ({}, "In Progress")]
)
def test_nvswitches_without_their_manager(
    said: Said, section: dict[str, tuple[int, str]], fabric: str
) -> None:
    summary, hint = only(said(gpus=(0, smi(fabric=fabric)), **section))
    assert summary.startswith("has NVSwitches, but NVIDIA's fabric manager is not ready")
    assert "systemctl enable --now nvidia-fabricmanager" in hint


def test_foreign_processes(said: Said) -> None:
    ours = "9f" * 32
    lines = (
        f"{ours}\tGPU-00000000-1111-2222-3333-444455556666, 4711, VLLM::Worker, 61234\n"
        "\tGPU-00000001-1111-2222-3333-444455556666, 815, python3, a.py, 2048\n"
    )
    facts = said(gpu_processes=(0, lines))
    assert [(p.name, p.cluster) for p in facts.gpus.processes] == [
        ("VLLM::Worker", "demo"), ("python3, a.py", ""),
    ]  # fmt: skip
    summary, hint = only(facts)
    assert summary == ("other processes use its GPUs: python3, a.py (pid 815, 2.0 GiB)")
    assert hint.startswith("end them: kill 815")


def test_a_small_foreign_process_is_noted(said: Said) -> None:
    line = "\tGPU-00000001-1111-2222-3333-444455556666, 815, gnome-shell, 100\n"
    facts = said(gpu_processes=(0, line))
    assert found(facts) == []
    assert "other processes use its GPUs: gnome-shell (pid 815, 0.1 GiB)" in noted(facts)


def test_persistence_mode_off_is_noted(said: Said) -> None:
    assert "persistence mode is off" in noted(said(gpus=(0, smi(persistence="Disabled"))))


def test_unlike_drivers_are_noted(said: Said) -> None:
    new, old = said(), said(gpus=(0, smi(driver="570.133.20")))
    text = "\n".join(notes(inventory(), {"gpu1": new, "gpu2": old}))
    assert "NVIDIA drivers differ: 580.159.04 on gpu1; 570.133.20 on gpu2" in text


def test_a_driver_too_old_for_the_image(said: Said) -> None:
    facts = said(gpus=(0, smi(driver="550.54.15")))
    needs = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=tesla,driver>=535,driver<536"}
    (problem,) = found(facts, image_env=needs)
    assert problem.summary == (
        "its driver 550.54.15 is too old for the image, which needs CUDA 12.8"
    )
    assert str(problem.hint).startswith(
        "clusterctl bootstrap /srv/demo.yaml --install-driver FILE.run with driver 570 or later"
    )


def test_no_control_groups_for_devices(said: Said) -> None:
    (problem,) = found(replace(said(), device_cgroup=False))
    assert problem.summary.startswith("has no control groups for devices")
