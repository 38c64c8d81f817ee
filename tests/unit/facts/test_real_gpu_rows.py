"""What the whole GPU part of the probe brought from a real machine with two H200."""

from __future__ import annotations

from collections.abc import Callable

from clusterctl.facts.parse import Probe


def test_every_row_of_two_h200_is_read(captured: Callable[[str], Probe]) -> None:
    facts = captured("ubuntu-24.04-2-gpus-rows").facts
    assert facts.unknown == ()
    report = facts.gpus
    assert (report.error, report.pci_devices, report.module) == (None, 2, "580.159.04")
    assert [(gpu.model, gpu.memory, gpu.compute_capability) for gpu in report.gpus] == [
        ("NVIDIA H200", 143_771 * 2**20, "9.0")
    ] * 2
    assert [gpu.pci_bus for gpu in report.gpus] == ["00000000:00:06.0", "00000000:00:07.0"]
    assert {(gpu.uncorrected_ecc, gpu.recovery, gpu.mig) for gpu in report.gpus} == {
        (0, "None", False)
    }
    assert report.processes == ()
